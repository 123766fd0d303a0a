"""`nitroc ir`: the program, stage by stage."""

from __future__ import annotations

from typing import Any

import click

from nitroc import stages
from nitroc.cli.flags import build_flags, given_options, quiet_flag


@click.command(name="ir", epilog="Example: nitroc ir bundle/ --diff clip")
@click.argument("source", metavar="exp.py|bundle/")
@click.option("--program", default="train_step", show_default=True, help="Which program.")
@click.option("--after", metavar="PASS", help="The stage after a pass, or import.")
@click.option("--all", "all_", is_flag=True, help="Every stage.")
@click.option("--diff", metavar="PASS", help="What a pass changed.")
@click.option("--stablehlo", is_flag=True, help="The emitted text.")
@click.option("--locs", is_flag=True, help="Source locations in it.")
@build_flags
@quiet_flag
def command(
    source: str,
    program: str,
    after: str | None,
    all_: bool,
    diff: str | None,
    stablehlo: bool,
    locs: bool,
    quiet: bool,
    **values: Any,
) -> None:
    """Prints a program's IR at one stage, the change a pass made, or its StableHLO."""
    text = stages.ir(
        source,
        program=program,
        after=after,
        every_stage=all_,
        diff=diff,
        stablehlo=stablehlo,
        locations=locs,
        preset=values["preset"],
        settings=values["settings"],
        **given_options(values),
    )
    click.echo(text, nl=not text.endswith("\n"))
