"""`nitroc evaluate`: metrics of one split under a checkpoint's weights."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from nitro_runtime.errors import GuardError
from nitroc import using
from nitroc.cli.flags import backend_flag, checkpoint_flag, json_flag, quiet_flag, set_flag


@click.command(
    name="evaluate", epilog="Example: nitroc evaluate bundle/ --checkpoint runs/Digits --split test"
)
@click.argument("bundle")
@checkpoint_flag
@click.option("--split", default="test", show_default=True, help="Which split.")
@click.option("--data", "data_file", metavar="F.npz", help="Splits from a file.")
@set_flag
@json_flag
@quiet_flag
@backend_flag
def command(
    bundle: str,
    checkpoint: str,
    split: str,
    data_file: str | None,
    settings: dict[str, str],
    as_json: bool,
    quiet: bool,
    backend: str | None,
) -> None:
    """Prints the metrics of a pass over one split; exit 1 when a guard counted in it."""
    try:
        metrics = using.evaluate(
            bundle,
            checkpoint=checkpoint,
            split=split,
            data_file=data_file,
            settings=settings,
            quiet=quiet,
            backend=backend,
        )
    except GuardError as error:
        _show(error.metrics or {}, as_json)
        raise
    _show(metrics, as_json)


def _show(metrics: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(metrics, sort_keys=True))
        return
    for name, value in metrics.items():
        click.echo(f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}")
