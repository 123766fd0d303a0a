"""The hooks of an experiment: which there are, how each is called, where each runs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from nitro_runtime.places import Kind, Place, current, running
from nitroc.errors import HookError
from nitroc.frontend.names import near
from nitroc.frontend.source import class_root, function_location

F = TypeVar("F")


@dataclass(frozen=True)
class HookSpec:
    """`arguments` are positional, after self; `fields` says that keyword-only names are fields."""

    name: str
    arguments: tuple[str, ...] = ()
    fields: bool = False
    place: Literal["traced", "host"] = "host"
    required: bool = False

    @property
    def signature(self) -> str:
        inner = ", ".join(["self", *self.arguments, *(["*", "<fields>"] if self.fields else [])])
        return f"def {self.name}({inner})"


_SPECS = (
    HookSpec("build_data"),
    HookSpec("derive", ("data",)),
    HookSpec("build_model", ("key",), required=True),
    HookSpec("prepare", fields=True, place="traced"),
    HookSpec("forward", ("model", "params", "state"), True, "traced", True),
    HookSpec("loss", ("outputs",), True, "traced", True),
    HookSpec("metrics", ("outputs",), True),
    HookSpec("train_metrics", ("outputs",), True, "traced"),
    HookSpec("finalize_metrics", ("acc", "split")),
    HookSpec("metrics_residency", ("hook",)),
    HookSpec("param_group", ("path", "leaf")),
    HookSpec("no_decay", ("path", "leaf")),
)
HOOKS = {spec.name: spec for spec in _SPECS}
"""The hooks this version calls, with the signature each must have."""

FREE_FORM = ("checkpoint_filename", "presets")
"""Hooks whose signature is read where they are called."""

NOT_RUN = (
    "train_step",
    "setup_optimizers",
    "optimizer_chain",
    "visualize",
    "save_figure",
)
"""Hooks of the language that this version does not run; so is everything named export_*."""


def is_hook_name(name: str) -> bool:
    """Whether a field may not have this name."""
    return name in HOOKS or name in FREE_FORM or name in NOT_RUN or name.startswith("export_")


def has_hook(experiment: Any, name: str) -> bool:
    return callable(getattr(type(experiment), name, None))


def hook_location(experiment: Any, name: str) -> str:
    """`exp.py:41`, relative to the folder of the experiment's file."""
    cls = type(experiment)
    return function_location(getattr(cls, name, None), class_root(cls))


def traced(hook: F) -> F:
    """Marks `build_model` as traced: it sees the compile view and becomes the program `init`."""
    hook.__nitro_traced__ = True  # pyright: ignore[reportAttributeAccessIssue]
    return hook


def is_traced(experiment: Any, name: str) -> bool:
    """Whether the hook was marked with `traced`."""
    return bool(getattr(getattr(type(experiment), name, None), "__nitro_traced__", False))


def check_hooks(experiment: Any, *, need_data: bool, data_given: bool) -> None:
    """Every required hook is there, none is one that would be ignored, each can be called.

    E-HOOK-001 (missing), -002 (signature), -005 (a hook this version does not run).
    """
    _refuse_not_run(experiment)
    for name, spec in HOOKS.items():
        required = spec.required or (name == "build_data" and need_data and not data_given)
        if has_hook(experiment, name):
            check_signature(experiment, spec)
        elif required:
            raise _missing(experiment, spec)


def _missing(experiment: Any, spec: HookSpec) -> HookError:
    cls = type(experiment)
    own = [n for n in dir(cls) if not n.startswith("_") and callable(getattr(cls, n))]
    close = near(spec.name, [n for n in own if not is_hook_name(n)])
    also = [f"{cls.__name__}.{close} has a similar name and is no hook"] if close else []
    return HookError(
        1,
        f"{cls.__name__} has no {spec.name} hook, which it must have",
        where=cls.__qualname__,
        also=also,
        help=f"write {spec.signature}" + (", or pass data=" if spec.name == "build_data" else ""),
    )


def _refuse_not_run(experiment: Any) -> None:
    cls = type(experiment)
    manual = getattr(experiment, "manual_training", None)
    manual = manual() if callable(manual) else manual
    for name in dir(cls):
        unused = name in ("train_step", "setup_optimizers") and manual is False
        refused = name in NOT_RUN or name.startswith("export_")
        if refused and not unused and has_hook(experiment, name):
            raise not_run(name, hook_location(experiment, name), f"remove {name} to go on")
    if manual:
        raise not_run("manual_training", cls.__qualname__, "set manual_training = False")


def call_hook(experiment: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
    """Calls a host hook; what it raises surfaces as itself, with a note of the hook.

    Marks in it are refused, unless the caller says what they mean there (`places.running`).
    """
    try:
        with running(current() or host_place(type(experiment), name)):
            return getattr(experiment, name)(*arguments, **keywords)
    except Exception as problem:
        problem.add_note(f"in hook {name}, {hook_location(experiment, name)}")
        raise


def host_place(cls: type, name: str) -> Place:
    """Where user code runs on the host: it has no step that a mark could stop."""
    return Place(name, Kind.REFUSED, class_root(cls))


def not_run(name: str, where: str, help: str) -> HookError:
    """The one error for a part of the language that this version does not run."""
    return HookError(5, f"{name}: this version of nitroc does not run it", where=where, help=help)


def check_signature(experiment: Any, spec: HookSpec) -> None:
    """E-HOOK-002 unless the hook takes `spec.arguments` by position and fields by keyword only."""
    hook = getattr(experiment, spec.name)
    parameters = list(inspect.signature(hook).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    problem = _position_problem(spec, parameters, positional) or _keyword_problem(spec, parameters)
    if problem:
        raise HookError(
            2,
            f"hook {spec.name}{inspect.signature(hook)} {problem}",
            where=hook_location(experiment, spec.name),
            help=f"write {spec.signature}",
        )


def _position_problem(
    spec: HookSpec, parameters: list[inspect.Parameter], positional: list[inspect.Parameter]
) -> str | None:
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return "takes *args, which nothing is passed to"
    expected = len(spec.arguments)
    if len(positional) < expected:
        missing = spec.arguments[len(positional) :]
        return f"takes {len(positional)} arguments by position, expected {expected}: " + (
            f"{', '.join(missing)} is missing"
        )
    extra = [p for p in positional[expected:] if p.default is p.empty]
    if spec.fields and positional[expected:]:
        names = ", ".join(p.name for p in positional[expected:])
        return f"takes {names} by position: batch fields are keyword-only, after a *"
    if extra:
        return f"takes {', '.join(p.name for p in extra)} too, which nothing is passed to"
    return None


def _keyword_problem(spec: HookSpec, parameters: list[inspect.Parameter]) -> str | None:
    if spec.fields:
        return None
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    return f"takes {', '.join(names)} by keyword, which nothing is passed to" if names else None
