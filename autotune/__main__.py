"""`python -m autotune` is the `autotune` program."""

from autotune.cli import main

if __name__ == "__main__":
    main()
