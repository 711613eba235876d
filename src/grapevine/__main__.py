"""`python -m grapevine` is the command."""

from grapevine.cli.main import main

if __name__ == "__main__":
    main()
