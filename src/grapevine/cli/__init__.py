"""The command: a file per command group."""

from grapevine.cli.main import main

__all__ = ["main"]
