"""`python -m grapevine` is the command."""

from grapevine.cli import main

main()
