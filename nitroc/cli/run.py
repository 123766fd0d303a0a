"""`nitroc run`: trains a bundle."""

from __future__ import annotations

from typing import Any

import click

from nitroc import commands
from nitroc.cli.flags import backend_flag, quiet_flag, set_flag


@click.command(name="run", epilog="Example: nitroc run bundle/ --epochs 40 --run-dir runs/a")
@click.argument("bundle")
@click.option("--epochs", "max_epochs", type=int, help="Epochs to train.  [as built]")
@click.option("--max-steps", type=int, help="Optimizer steps over all resumes.")
@click.option("--max-time", metavar="T", help="Seconds, or a text like 2h30m.")
@click.option("--run-dir", metavar="D", help="Where it writes.  [runs/<Class>]")
@click.option("--tags", metavar="A,B", help="Words for the logger.")
@click.option("--resume", metavar="WHICH", help="auto, latest, best, a run id or a path.")
@click.option("--checkpoint", metavar="C", help="Start from these weights only.")
@click.option("--seed", type=int, help="Data order and keys.  [as built]")
@set_flag
@click.option("--schedule-total", type=int, help="Total handed to schedule factories.")
@click.option("--log-every", type=int, help="Steps between train lines.  [1]")
@click.option("--diagnostics", multiple=True, metavar="GLOB", help="Which to run; repeatable.")
@click.option("--sample-every", type=int, help="Steps between their samples.  [100]")
@click.option("--on-nonfinite-metric", metavar="error|ignore", help="A NaN control metric.")
@click.option("--data", "data_file", metavar="F.npz", help="The splits; host/ is not imported.")
@quiet_flag
@backend_flag
def command(
    bundle: str,
    settings: dict[str, str],
    tags: str | None,
    quiet: bool,
    backend: str | None,
    data_file: str | None,
    **options: Any,
) -> None:
    """Trains a bundle and prints where the run is."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if tags is not None:
        given["tags"] = tuple(word for word in tags.split(",") if word)
    handle = commands.run(
        bundle, settings=settings, data_file=data_file, quiet=quiet, backend=backend, **given
    )
    if not quiet:
        click.echo(f"{handle.stop_reason}: {handle.run_dir}", err=True)
    status = {"interrupted": 130}.get(handle.stop_reason or "", 0)
    raise SystemExit(status)
