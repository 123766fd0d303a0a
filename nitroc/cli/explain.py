"""`nitroc explain`: the binding report, or an error code's page."""

from __future__ import annotations

from typing import Any

import click

from nitroc.cli.flags import build_flags, given_options, quiet_flag
from nitroc.explaining import explain


@click.command(name="explain", epilog="Example: nitroc explain E-FIELD-001")
@click.argument("source", metavar="exp.py|bundle/|CODE")
@build_flags
@quiet_flag
def command(source: str, quiet: bool, **values: Any) -> None:
    """Prints what every configured value binds to, or what an error code means."""
    click.echo(
        explain(
            source,
            preset=values["preset"],
            settings=values["settings"],
            **given_options(values),
        )
    )
