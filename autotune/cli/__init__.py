"""The command line. Each command's module is imported only when that command runs."""

from autotune.cli.app import main

__all__ = ["main"]
