"""`nitroc run`: trains a bundle."""

from __future__ import annotations

from typing import Any, NoReturn

import click

from nitro_runtime.errors import UsageError
from nitroc import using
from nitroc.cli.flags import backend_flag, quiet_flag, set_flag

FLAGS = {"max_epochs": "epochs"}
"""Flags that are called otherwise than their option."""


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
@click.option(
    "--locate-nonfinite",
    is_flag=True,
    help="Run the step that failed in --run-dir again, and name its first operation that is not "
    "finite.",
)
@quiet_flag
@backend_flag
def command(
    bundle: str,
    settings: dict[str, str],
    tags: str | None,
    quiet: bool,
    backend: str | None,
    data_file: str | None,
    locate_nonfinite: bool,
    **options: Any,
) -> None:
    """Trains a bundle and prints where the run is."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if locate_nonfinite:
        others = {"set": settings, "tags": tags, "data": data_file}
        _locate(bundle, {**given, **others}, quiet, backend)
    if tags is not None:
        given["tags"] = tuple(word for word in tags.split(",") if word)
    handle = using.run(
        bundle, settings=settings, data_file=data_file, quiet=quiet, backend=backend, **given
    )
    if not quiet:
        click.echo(f"{handle.stop_reason}: {handle.run_dir}", err=True)
    status = {"interrupted": 130}.get(handle.stop_reason or "", 0)
    raise SystemExit(status)


def _locate(bundle: str, given: dict[str, Any], quiet: bool, backend: str | None) -> NoReturn:
    """Prints what is found in the run's replay; exit 1 when nothing is."""
    run_dir = given.pop("run_dir", None)
    if run_dir is None:
        raise UsageError(
            41,
            "--locate-nonfinite needs the directory of the run that failed",
            where="--locate-nonfinite",
            help=f"nitroc run {bundle} --locate-nonfinite --run-dir D",
        )
    others = [FLAGS.get(name, name) for name, value in given.items() if value]
    if others:
        raise UsageError(
            37,
            f"--{others[0].replace('_', '-')} with --locate-nonfinite, which trains nothing: it "
            "would change nothing",
            help="leave it out",
        )
    from nitroc import locating  # it takes the whole compiler, which a run does without

    located = locating.locate_nonfinite(bundle, run_dir, backend=backend, quiet=quiet)
    click.echo(located.text())
    raise SystemExit(0 if located.found else 1)
