"""`nitroc verify`: the loader's checks of a bundle."""

from __future__ import annotations

import click

from nitro_runtime.bundle import verify
from nitroc.cli.flags import backend_flag, quiet_flag


@click.command(name="verify", epilog="Example: nitroc verify bundle/ --run")
@click.argument("directory")
@click.option("--run", "run_", is_flag=True, help="Compile and self-test too.")
@quiet_flag
@backend_flag
def command(directory: str, run_: bool, quiet: bool, backend: str | None) -> None:
    """Checks every byte, reference and program of a bundle."""
    lines = verify(directory, run=run_, backend=backend)
    if not quiet:
        click.echo("\n".join(lines))
