"""The command group, and the one place where an error becomes a line and an exit status."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

import click

from nitro_dialect import DialectError
from nitro_runtime.errors import NitroError, UsageError

COMMANDS = {
    "build": "an experiment becomes a bundle",
    "run": "train a bundle",
    "evaluate": "metrics of a split under a checkpoint's weights",
    "predict": "outputs for arrays of a file",
    "ir": "the program's IR, stage by stage, or its StableHLO",
    "explain": "what a bundle or an experiment binds, or what an error code means",
    "verify": "check a bundle, byte by byte and program by program",
}


class Commands(click.Group):
    """Imports `nitroc.cli.<command>` on use, so that one command does not pay for another."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"nitroc.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:
            raise UsageError(
                30,
                f"there is no command {args[0]!r}",
                help=did_you_mean(args[0], COMMANDS) or f"commands: {', '.join(COMMANDS)}",
            )
        return super().resolve_command(ctx, args)


def did_you_mean(word: str, known: Any) -> str | None:
    close = get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else None


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nitroc")
def app() -> None:
    """A training compiler: experiments become bundles that train, evaluate and predict."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits with the status of spec'd errors: 0 1 2 3 4 130 143."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # the backend's start-up lines are no news
    arguments = list(sys.argv[1:] if args is None else args)
    name = " ".join(["nitroc", *[a for a in arguments[:1] if a in COMMANDS]])
    try:
        app.main(args=arguments, prog_name="nitroc", standalone_mode=False)
    except NitroError as error:
        fail(name, error.text(), error.exit)
    except DialectError as error:
        fail(name, str(error), 3)
    except click.UsageError as error:
        usage = UsageError(31, error.format_message(), help=f"{name} --help")
        fail(name, usage.text(), usage.exit)
    except (click.Abort, KeyboardInterrupt):
        fail(name, "interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None
    raise SystemExit(0)


def fail(name: str, text: str, status: int) -> NoReturn:
    click.echo(f"{name}: {text}", err=True)
    raise SystemExit(status)
