"""Flags that several commands share, and how their values are read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import click

from nitro_runtime.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def assignments(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` pairs as a dict; the last of one name wins."""
    pairs = [value.partition("=") for value in values]
    for name, equals, _rest in pairs:
        if not equals or not name:
            raise UsageError(
                32, f"--set takes NAME=VALUE, found {name!r}", help="for example --set width=256"
            )
    return {name: value for name, _, value in pairs}


set_flag = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=assignments,
    help="A field or an option; repeatable.",
)


def silence(_: click.Context, __: click.Parameter, quiet: bool) -> bool:
    """Errors only: warnings of libraries and of the experiment are none."""
    if quiet:
        warnings.simplefilter("ignore")
    return quiet


quiet_flag = click.option("-q", "--quiet", is_flag=True, callback=silence, help="Errors only.")
backend_flag = click.option("--backend", metavar="NAME", help="Where to run: cpu, cuda, rocm, tpu.")
checkpoint_flag = click.option(
    "--checkpoint", metavar="C", required=True, help="A checkpoint, run directory or run id."
)
json_flag = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


def _whole(text: str) -> int | str:
    """A whole number, or the text as it is: the option's own check says what it may be."""
    return int(text) if text.isdecimal() else text


def build_flags(command: F) -> F:
    """Field and option flags of `build`, which `ir` and `explain` of an experiment take too."""
    flags = [
        click.option("--preset", metavar="NAME", help="A preset of the experiment's class."),
        set_flag,
        click.option("--accum", type=int, help="Micro-batches per optimizer step.  [1]"),
        click.option("--gradient-clip-norm", type=float, help="Global norm; 0 emits no op.  [0]"),
        click.option("--no-guard-finite", is_flag=True, help="Leave the finite guard out."),
        click.option("--on-nonfinite", metavar="POLICY", help="stop.  [stop]"),
        click.option("--no-master-weights", is_flag=True, help="No f32 masters of narrow leaves."),
        click.option("--n-devs", metavar="N[,M]", help="Device counts to compile for.  [1]"),
        click.option("--fuse", metavar="K", help="Steps per dispatch: auto or 1.  [auto]"),
        click.option("--layout", metavar="MODE", help="auto, flat or leaves.  [auto]"),
        click.option("--platform", metavar="NAME", help="What to trace for: cpu cuda rocm tpu."),
        click.option("--compat", metavar="V", help="StableHLO version written: max current M.m.p."),
        click.option("--strip-locs", is_flag=True, help="Leave source locations out."),
    ]
    for flag in reversed(flags):
        command = flag(command)
    return command


def given_options(values: dict[str, Any]) -> dict[str, Any]:
    """The build flags that were given, as keyword options of the Python functions."""
    options = {
        name: values[name]
        for name in ("accum", "gradient_clip_norm", "on_nonfinite", "layout")
        if values[name] is not None
    }
    if values["fuse"] is not None:
        options["fuse"] = _whole(values["fuse"])
    if values["n_devs"] is not None:
        counts = [_whole(text) for text in values["n_devs"].split(",")]
        options["n_devs"] = counts[0] if len(counts) == 1 else counts
    if values["no_guard_finite"]:
        options["guard_finite"] = False
    if values["no_master_weights"]:
        options["master_weights"] = False
    for name in ("platform", "compat"):
        if values[name] is not None:
            options[name] = values[name]
    if values["strip_locs"]:
        options["strip_locs"] = True
    return options
