"""`python -m grapevine` is the command."""

from grapevine.cli import main

if __name__ == "__main__":
    main()
