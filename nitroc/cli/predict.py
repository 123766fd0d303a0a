"""`nitroc predict`: outputs for the arrays of a file."""

from __future__ import annotations

import click

from nitroc import using
from nitroc.cli.flags import backend_flag, checkpoint_flag, quiet_flag, set_flag


@click.command(
    name="predict",
    epilog="Example: nitroc predict b/ --checkpoint runs/Digits --input x.npz -o y.npz",
)
@click.argument("bundle")
@checkpoint_flag
@click.option("--input", "input_file", metavar="F.npz", required=True, help="Arrays by field.")
@click.option("-o", "--output", metavar="F.npz", required=True, help="Outputs by name.")
@set_flag
@quiet_flag
@backend_flag
def command(
    bundle: str,
    checkpoint: str,
    input_file: str,
    output: str,
    settings: dict[str, str],
    quiet: bool,
    backend: str | None,
) -> None:
    """Writes the outputs of `forward` for every row of the input."""
    using.predict(
        bundle,
        checkpoint=checkpoint,
        input_file=input_file,
        output=output,
        settings=settings,
        quiet=quiet,
        backend=backend,
    )
    if not quiet:
        click.echo(output, err=True)
