"""The command line. Each command's module is imported only when that command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the work failed, 2 bad usage, 130 interrupted."""
    try:
        from autotune.cli.app import run

        run()
    except SystemExit:
        raise
    except BaseException as error:
        from autotune.vocabulary.errors import is_interrupt

        if not is_interrupt(error):
            raise
        # Also while modules are still being imported, where no command can catch it.
        print("interrupted", file=sys.stderr)
        sys.exit(130)


__all__ = ["main"]
