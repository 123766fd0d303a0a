"""The optimizer's settings, collected from an experiment's accessors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from nitroc.errors import HookError, OptError
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.hooks import not_run
from nitroc.frontend.options import has_attribute, is_method, read_attribute
from nitroc.frontend.source import class_root, function_location
from nitroc.rules import RAdam, Rule, zeros

DEFAULTS = {"learning_rate": 1e-3, "weight_decay": 0.0}

GROUP = "default"


@dataclass(frozen=True)
class OptimizerConfig:
    """Base values of the group `default`.

    `fields` are the rule's floats; `sources` says for every value what decided it; `device` maps a
    value that a scalar Device field supplies to that field; `decays`: there is a decay stage.
    """

    rule: Rule
    learning_rate: float
    weight_decay: float
    fields: dict[str, float]
    sources: dict[str, str]
    device: dict[str, str]
    decays: bool

    @property
    def values(self) -> dict[str, float]:
        """Every float by name, `weight_decay` only where there is a decay stage."""
        decay = {"weight_decay": self.weight_decay} if self.decays else {}
        return {"learning_rate": self.learning_rate, **decay, **self.fields}


def read_optimizer(
    experiment: Experiment, scheduled: Collection[str], device: Collection[str]
) -> OptimizerConfig:
    """Reads `optimizer`, `learning_rate`, `weight_decay` and the rule's floats.

    `scheduled` are the optimizer fields that have a schedule, `device` the scalar Device fields.

    E-OPT-041 for a base rate of 0, -042 for a value out of range, -043 for what is no rule;
    E-HOOK-002 for a method without the group, -005 for an anchor this version does not run.
    """
    _refuse_anchor(experiment)
    rule = read_rule(experiment)
    given = has_attribute(experiment, "optimizer")
    sources = {"optimizer": "attribute" if given else "default"}
    floats = {
        name: _read_float(experiment, name, DEFAULTS.get(name, rule.fields.get(name)), sources)
        for name in (*DEFAULTS, *rule.fields)
    }
    _check_rate(experiment, floats["learning_rate"], "learning_rate" in scheduled)
    if floats["weight_decay"] < 0:
        raise _out_of_range(experiment, "weight_decay", floats["weight_decay"])
    supplied = {name: name for name in floats if name in device}
    return OptimizerConfig(
        rule,
        floats["learning_rate"],
        floats["weight_decay"],
        {name: floats[name] for name in rule.fields},
        sources,
        supplied,
        floats["weight_decay"] != 0 or "weight_decay" in scheduled,
    )


def read_rule(experiment: Experiment) -> Rule:
    """The rule of `optimizer`, RAdam without one.

    E-OPT-043 for what is no rule, E-HOOK-005 for a slot that this version does not start.
    """
    if not has_attribute(experiment, "optimizer"):
        return RAdam
    value = _ask(experiment, "optimizer")
    if isinstance(value, Rule):
        _refuse_made_slots(value)
        return value
    raise OptError(
        43,
        f"optimizer gives a {type(value).__name__}, expected a rule",
        where=accessor_location(experiment, "optimizer"),
        help="give one of nt.rules, or a function decorated with nt.rule",
    )


def _refuse_made_slots(rule: Rule) -> None:
    for slot, start in rule.slots.items():
        if callable(start) and start is not zeros:
            raise not_run(
                f"slot {slot} of rule {rule.name}, which a function of the parameter starts",
                rule.where,
                "start it as nt.zeros, or as a number",
            )


def accessor_location(experiment: Experiment, name: str) -> str:
    """`exp.py:41` of a method or property, `Class.name (line 4)` of a field."""
    cls = type(experiment)
    field = cls.__nitro_fields__.get(name)
    if field is not None:
        return f"{cls.__name__}.{name} (line {field.line})"
    return function_location(getattr(cls, name, None), class_root(cls)) or cls.__name__


def _ask(experiment: Experiment, name: str) -> Any:
    if not is_method(experiment, name):
        return read_attribute(experiment, name)
    try:
        _signature(experiment, name).bind(GROUP)
    except TypeError as problem:
        raise HookError(
            2,
            f"{name}{_signature(experiment, name)} can't be asked for a group: {problem}",
            where=accessor_location(experiment, name),
            help=f"write def {name}(self, group)",
        ) from None
    return read_attribute(experiment, name, GROUP)


def _signature(experiment: Experiment, name: str) -> Any:
    return inspect.signature(getattr(experiment, name))


def _read_float(
    experiment: Experiment, name: str, default: float | None, sources: dict[str, str]
) -> float:
    assert default is not None
    if not has_attribute(experiment, name):
        sources[name] = "default"
        return float(default)
    value = _ask(experiment, name)
    plain = value.item() if getattr(value, "shape", None) == () else value
    real = isinstance(plain, int | float) and not isinstance(plain, bool)
    if not real or not math.isfinite(plain):
        raise _out_of_range(experiment, name, plain)
    sources[name] = "attribute"
    return float(plain)


def _out_of_range(experiment: Experiment, name: str, value: Any) -> OptError:
    bound = "finite and >= 0" if name in DEFAULTS else "a finite number"
    return OptError(
        42,
        f"{name} is {value!r}, expected {bound}",
        where=accessor_location(experiment, name),
        help=f"give a value that is {bound}",
    )


def _check_rate(experiment: Experiment, rate: float, scheduled: bool) -> None:
    if rate < 0:
        raise _out_of_range(experiment, "learning_rate", rate)
    if rate > 0:
        return
    what = (
        "learning_rate is 0 and scheduled: the ratio of a group's rate to the base is undefined"
        if scheduled
        else "learning_rate is 0: every parameter is frozen and nothing can train"
    )
    raise OptError(
        41,
        what,
        where=accessor_location(experiment, "learning_rate"),
        help="give a base learning rate above 0",
    )


def _refuse_anchor(experiment: Experiment) -> None:
    if not has_attribute(experiment, "decay_anchor"):
        return
    anchor = _ask(experiment, "decay_anchor")
    if not isinstance(anchor, str) or anchor != "zero":
        raise not_run(
            "decay_anchor",
            accessor_location(experiment, "decay_anchor"),
            "return 'zero', the default: other anchors are not run",
        )


def scalar_name(name: str, device_scalars: Collection[str]) -> str:
    """The packed slot of an optimizer field: its name, `opt.`-prefixed beside a Device scalar."""
    return f"opt.{name}" if name in device_scalars else name
