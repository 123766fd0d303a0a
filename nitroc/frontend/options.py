"""Run options: what each may be, and which of keyword, record, attribute, default decides it."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from nitro_runtime.errors import UsageError
from nitro_runtime.options import RunOptions, parse_duration
from nitro_runtime.places import running
from nitroc.errors import FieldError
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.fields import type_text
from nitroc.frontend.hooks import host_place
from nitroc.frontend.names import did_you_mean

Source = Literal["keyword", "recorded", "attribute", "default"]
Check = Callable[[Any], bool]


@dataclass(frozen=True)
class Resolved:
    """An option's value, what decided it, and whether it is part of the programs."""

    value: Any
    source: str
    baked: bool


@dataclass(frozen=True)
class OptionSpec:
    """One run option. `range` says in words what `check` accepts; `declared` reads `--set` text.

    `attribute`: may be an attribute of the experiment. `baked`: changes the programs. `runs`: the
    values this version acts on, where they are fewer than the language has.
    """

    name: str
    default: Any
    declared: Any
    range: str
    check: Check
    attribute: bool = True
    baked: bool = False
    runs: tuple[Any, ...] | None = None


def _whole(low: int, high: int | None = None, none: bool = False) -> Check:
    def check(value: Any) -> bool:
        if value is None:
            return none
        fits = isinstance(value, int) and not isinstance(value, bool)
        return fits and value >= low and (high is None or value <= high)

    return check


def _number(low: float) -> Check:
    def check(value: Any) -> bool:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        return real and math.isfinite(value) and value >= low

    return check


def _one_of(*allowed: Any) -> Check:
    return lambda value: any(type(a) is type(value) and a == value for a in allowed)


def _either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _duration(value: Any) -> bool:
    try:
        parse_duration(value)
    except (UsageError, TypeError):
        return value is None
    return True


def _anything(value: Any) -> bool:
    return True


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(item, str) for item in cast("list[Any]", value)
    )


def _device_counts(value: Any) -> bool:
    counts = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    return bool(counts) and all(_whole(1)(count) for count in counts)


def _minutes(value: Any) -> bool:
    return value is None or (_number(0)(value) and value > 0)


_TRUTH = _one_of(True, False)
_MAPPING_OR_NONE: Check = lambda value: value is None or isinstance(value, Mapping)  # noqa: E731
_PATH: Check = lambda value: isinstance(value, str | os.PathLike) and bool(str(value))  # noqa: E731
_NAME_OR_NONE: Check = lambda value: value is None or _PATH(value)  # noqa: E731
_RESUME: Check = lambda value: value in (False, None) or _PATH(value)  # noqa: E731

_ROWS = (
    OptionSpec("seed", 42, int, "a whole number 0 .. 2^63-1", _whole(0, 2**63 - 1)),
    OptionSpec("max_epochs", 1, int, "a whole number >= 0", _whole(0)),
    OptionSpec("max_steps", None, int | None, "a whole number >= 1, or None", _whole(1, none=True)),
    OptionSpec("max_time", None, str | None, "seconds > 0, a text like 2h30m, or None", _duration),
    OptionSpec("accum", 1, int, "a whole number >= 1", _whole(1), baked=True),
    OptionSpec(
        "gradient_clip_norm", 0.0, float, "finite and >= 0; 0 is off", _number(0), baked=True
    ),
    OptionSpec(
        "guard_finite",
        True,
        bool | Literal["update"],
        "True, False or 'update'",
        _one_of(True, False, "update"),
        baked=True,
        runs=(True, False),
    ),
    OptionSpec(
        "on_nonfinite",
        "stop",
        str,
        "'stop' or 'skip'",
        _one_of("stop", "skip"),
        baked=True,
        runs=("stop",),
    ),
    OptionSpec("master_weights", True, bool, "True or False", _TRUTH, baked=True),
    OptionSpec("max_skips", 10, int, "a whole number >= 0", _whole(0)),
    OptionSpec(
        "on_nonfinite_metric", "error", str, "'error' or 'ignore'", _one_of("error", "ignore")
    ),
    OptionSpec(
        "layout",
        "auto",
        str,
        "'auto', 'flat' or 'leaves'",
        _one_of("auto", "flat", "leaves"),
        baked=True,
    ),
    OptionSpec(
        "fuse",
        "auto",
        int | Literal["auto"],
        "'auto' or a whole number >= 1",
        _either(_one_of("auto"), _whole(1)),
        baked=True,
        runs=("auto", 1),
    ),
    OptionSpec(
        "n_devs",
        1,
        int | list[int],
        "a whole number >= 1, or several",
        _device_counts,
        baked=True,
        runs=(1, [1], (1,)),
    ),
    OptionSpec("zero", False, bool, "True or False", _TRUTH, baked=True, runs=(False,)),
    OptionSpec("schedules", None, None, "a dict from name to schedule, or None", _MAPPING_OR_NONE),
    OptionSpec(
        "schedule_total", None, int | None, "a whole number >= 1, or None", _whole(1, none=True)
    ),
    OptionSpec("log_every", 1, int, "a whole number >= 1", _whole(1)),
    OptionSpec("diagnostics", (), tuple[str, ...], "a tuple of name patterns", _texts),
    OptionSpec("sample_every", 100, int, "a whole number >= 1", _whole(1)),
    OptionSpec(
        "every_steps",
        None,
        int | None,
        "a whole number >= 1, or None",
        _whole(1, none=True),
        runs=(None,),
    ),
    OptionSpec(
        "every_minutes", None, float | None, "a number > 0, or None", _minutes, runs=(None,)
    ),
    OptionSpec("run_dir", None, str | None, "a path, or None for runs/<Class>", _NAME_OR_NONE),
    OptionSpec("tags", (), tuple[str, ...], "a tuple of words", _texts),
    OptionSpec("logger", None, None, "a logger, several, or None", _anything),
    OptionSpec("checkpointer", None, None, "a checkpointer, or None", _anything),
    OptionSpec("early_stop", None, None, "a stopper, or None", _anything),
    OptionSpec(
        "resume", False, str | bool, "'auto', 'latest', 'best', a run id or a path", _RESUME, False
    ),
    OptionSpec("checkpoint", None, str | None, "a path or a run id", _NAME_OR_NONE, False),
    OptionSpec("data", None, None, "a dict of splits", _MAPPING_OR_NONE, False),
    OptionSpec("preset", None, str | None, "the name of a preset", _NAME_OR_NONE, False),
    OptionSpec("keep_guards", False, bool, "True or False", _TRUTH, attribute=False, runs=(False,)),
)
OPTIONS = {spec.name: spec for spec in _ROWS}
"""Every run option of the language, by name."""

OBJECTS = ("schedules", "logger", "checkpointer", "early_stop")
"""Options that hold objects: on the command line only `none` can be written for them.

None from any source but `UNSET` turns one off; with that source the runtime's own object is
used.
"""

DEFAULT_OBJECTS = {"logger": "JSONLogger()", "checkpointer": "TopKCheckpointer()"}
"""What the runtime uses for an object that nothing decided."""

UNSET = "default"
"""The source of an option that nothing decided."""


def resolve(
    experiment: Experiment, keywords: Mapping[str, Any], recorded: Mapping[str, Any]
) -> dict[str, Resolved]:
    """Every option, decided by keyword, then record, then attribute, then default.

    E-USAGE-001 for an unknown keyword, -002 out of range, -003 for what this version lacks;
    E-FIELD-010 for an option's field with a marker it can't have.
    """
    for name in (*keywords, *recorded):
        if name not in OPTIONS:
            raise unknown_option(name)
    _check_kinds(experiment)
    return {
        name: _resolve_one(experiment, spec, keywords, recorded) for name, spec in OPTIONS.items()
    }


def unknown_option(name: str) -> UsageError:
    return UsageError(
        1, f"{name!r} is no run option", where=name, help=did_you_mean(name, OPTIONS, "options")
    )


def _check_kinds(experiment: Experiment) -> None:
    for name, field in type(experiment).__nitro_fields__.items():
        spec = OPTIONS.get(name)
        if spec is None or not spec.attribute:
            continue
        if field.kind == "device" or (field.kind == "graphconst" and not spec.baked):
            why = "is no input of a program" if field.kind == "device" else "changes no program"
            raise FieldError(
                10,
                f"the run option {name} is marked {field.kind}, but it {why}",
                where=f"{type(experiment).__name__}.{name} (line {field.line})",
                help=f"leave it unmarked: {name}: {type_text(field.type)} = ...",
            )


def _resolve_one(
    experiment: Experiment,
    spec: OptionSpec,
    keywords: Mapping[str, Any],
    recorded: Mapping[str, Any],
) -> Resolved:
    value, source = _decide(experiment, spec, keywords, recorded)
    checked = check_option(spec, value, source)
    return Resolved(checked, source, spec.baked)


def _decide(
    experiment: Experiment,
    spec: OptionSpec,
    keywords: Mapping[str, Any],
    recorded: Mapping[str, Any],
) -> tuple[Any, Source]:
    if spec.name in keywords:
        return keywords[spec.name], "keyword"
    if spec.name in recorded:
        return recorded[spec.name], "recorded"
    if spec.attribute and has_attribute(experiment, spec.name):
        return read_attribute(experiment, spec.name), "attribute"
    return spec.default, "default"


def check_option(spec: OptionSpec, value: Any, source: str) -> Any:
    """`value` as a plain Python value in the option's range."""
    plain = value.item() if getattr(value, "shape", None) == () else value
    if not spec.check(plain):
        raise UsageError(
            2,
            f"{spec.name} is {plain!r} (from {source}), expected {spec.range}",
            where=f"option {spec.name}",
            help=f"give {spec.range}",
        )
    if spec.runs is not None and not _one_of(*spec.runs)(plain):
        known = " or ".join(map(repr, spec.runs[:2]))
        raise UsageError(
            3,
            f"{spec.name} is {plain!r} (from {source}), which this version of nitroc does not "
            f"have; it has {known}",
            where=f"option {spec.name}",
            help=f"leave {spec.name} at {spec.default!r}",
        )
    return plain


def has_attribute(experiment: Any, name: str) -> bool:
    return name in vars(experiment) or hasattr(type(experiment), name)


def read_attribute(experiment: Any, name: str, *arguments: Any) -> Any:
    """A field, a property, or a method called with `arguments`. Marks in it are refused."""
    with running(host_place(type(experiment), name)):
        value = getattr(experiment, name)
        return value(*arguments) if is_method(experiment, name) else value


def is_method(experiment: Any, name: str) -> bool:
    static = inspect.getattr_static(type(experiment), name, None)
    return isinstance(static, staticmethod | classmethod) or inspect.isfunction(static)


_PASSED_ON = (
    "seed",
    "max_epochs",
    "max_steps",
    "max_time",
    "tags",
    "log_every",
    "diagnostics",
    "sample_every",
    "resume",
    "checkpoint",
    "on_nonfinite_metric",
    "schedule_total",
)


def run_options(
    experiment: Experiment, options: Mapping[str, Resolved], **further: Any
) -> RunOptions:
    """The runtime's options, from resolved ones; `further` are `backend` and `quiet`."""
    values: dict[str, Any] = {name: options[name].value for name in _PASSED_ON}
    values["tags"] = tuple(values["tags"])
    values["diagnostics"] = tuple(values["diagnostics"])
    values["resume"] = values["resume"] or False
    run_dir = options["run_dir"].value
    values["run_dir"] = run_dir if run_dir is not None else default_run_dir(experiment)
    return RunOptions(**values, **further)


def default_run_dir(experiment: Experiment) -> Path:
    return Path("runs") / type(experiment).__name__
