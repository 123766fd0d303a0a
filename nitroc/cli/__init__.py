"""The command line: one module per command, loaded when it is asked for."""

from nitroc.cli.app import main

__all__ = ["main"]
