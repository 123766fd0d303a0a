"""The command group, and the one place where an error becomes a line and an exit status."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

import click

from nitro_dialect import DialectError
from nitro_runtime.errors import NitroError, UsageError
from nitro_runtime.signals import TERMINATED
from nitroc.cli.failure import baked_flag, explained

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


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: nitroc build exp.py -o bundle/ && nitroc run bundle/",
)
@click.version_option(package_name="nitroc")
def app() -> None:
    """A training compiler: experiments become bundles that train, evaluate and predict."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits with the status of spec'd errors: 0 1 2 3 4 130 143."""
    arguments = list(sys.argv[1:] if args is None else args)
    name = " ".join(["nitroc", *[a for a in arguments[:1] if a in COMMANDS]])
    try:
        with warnings.catch_warnings():
            app.main(args=arguments, prog_name="nitroc", standalone_mode=False)
    except NitroError as error:
        fail(name, error.text(), error.exit)
    except DialectError as error:
        fail(name, str(error), 3)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        raise SystemExit(2) from None
    except click.UsageError as error:
        usage = baked_flag(error) if name == "nitroc run" else None
        usage = usage or UsageError(31, error.format_message(), help=f"{name} --help")
        fail(name, usage.text(), usage.exit)
    except (click.Abort, KeyboardInterrupt):
        fail(name, "interrupted", 130)
    except SystemExit as ended:
        if ended.code == TERMINATED:
            fail(name, "terminated; what was saved is as it was", TERMINATED)
        raise
    except BrokenPipeError:
        # Whoever read stdout has left: the interpreter's last flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:  # the user's hooks, or a defect: never a bare traceback
        found = explained(error, name)
        fail(name, found.text(), found.exit)
    raise SystemExit(0)


def fail(name: str, text: str, status: int) -> NoReturn:
    click.echo(f"{name}: {text}", err=True)
    raise SystemExit(status)
