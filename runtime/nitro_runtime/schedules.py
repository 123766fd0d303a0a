"""Schedules: what a scalar slot holds at each step, computed on the host.

A callable is called once with the horizon. If that returns something callable it is a *factory*,
and what it made is asked with the upcoming step, from 1. If it returns a number it is itself a
*plain* schedule (optax's convention) and is asked with `step - 1`; `schedule(f)` says so without
the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from nitro_runtime.errors import ScheduleError

Number = float | int | bool
Kind = Literal["number", "factory", "plain"]


@dataclass(frozen=True)
class PlainSchedule:
    """`f`, asked with `step - 1`, never with the horizon; `steps`: how far it goes, if it ends."""

    f: Callable[[int], Any]
    steps: int | None = None


def schedule(f: Callable[[int], Any]) -> PlainSchedule:
    """Says that `f` is itself a schedule in optax's convention: asked with `step - 1`, from 0."""
    return PlainSchedule(f)


class Schedule:
    """A resolved schedule of the scalar `name`, whose slot has `dtype` (`f32`, `i32` or `i1`).

    Called with the upcoming step, from 1; each step is asked once. Past `horizon` it holds its
    last value.
    """

    def __init__(
        self, name: str, kind: Kind, ask: Callable[[int], Any], horizon: int, dtype: str = "f32"
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.horizon = horizon
        self.dtype = dtype
        self.warning: str | None = None
        self._ask = ask
        self._last: tuple[int, Number] | None = None
        self._seen: dict[str, tuple[int, Number]] = {}

    def __call__(self, step: int) -> Number:
        """The value at `step`; E-SCHED-002 for one that the slot can't hold."""
        step = self._held(step)
        if self._last is not None and self._last[0] == step:
            return self._last[1]
        asked = step - 1 if self.kind == "plain" else step
        value = coerce(self._ask(asked), self.name, step, self.dtype)
        self._last = (step, value)
        self._note(step, value)
        return value

    def _held(self, step: int) -> int:
        if step <= self.horizon or self.kind == "number":
            return step
        if self.warning is None:
            self.warning = (
                f"schedule {self.name}: step {step} is past its horizon of {self.horizon} steps, "
                "the last value is held"
            )
        return self.horizon

    def _note(self, step: int, value: Number) -> None:
        self._seen.setdefault("first", (step, value))
        self._seen["last"] = (step, value)
        if value > self._seen.setdefault("peak", (step, value))[1]:
            self._seen["peak"] = (step, value)

    def describe(self) -> str:
        """For the report: what the schedule was taken for, and the values seen so far."""
        asked = {
            "number": "a number",
            "factory": f"a factory, called with {self.horizon} and asked with the step, from 1",
            "plain": "a schedule, asked with step - 1, from 0",
        }[self.kind]
        seen = ", ".join(
            f"{key} {value:g} at step {step}" for key, (step, value) in self._seen.items()
        )
        return f"{self.name}: taken for {asked}" + (f"; {seen}" if seen else "")


def resolve(name: str, value: Any, total: int, *, dtype: str = "f32") -> Schedule:
    """The schedule of scalar `name` given as a number, a factory or a plain schedule.

    `total` is the horizon: what a factory is called with, and where the last value is held from.
    Exceptions of the user's functions surface as themselves.
    """
    total = max(total, 1)
    if isinstance(value, PlainSchedule):
        return Schedule(name, "plain", value.f, min(total, value.steps or total), dtype)
    if not callable(value):
        number = coerce(value, name, 1, dtype)
        return Schedule(name, "number", lambda _: number, total, dtype)
    made = value(total)
    if callable(made):
        return Schedule(name, "factory", cast("Callable[[int], Any]", made), total, dtype)
    if _scalar(made) is None:
        raise ScheduleError(
            1,
            f"schedule {name} called with the horizon {total} returned {_show(made)}, expected a "
            "function (a factory) or a number (a schedule)",
            where=f"schedule {name}",
            help="return f(step) from the factory, or say nt.schedule(f)",
        )
    return Schedule(name, "plain", value, total, dtype)


def coerce(value: Any, name: str, step: int, dtype: str) -> Number:
    """`value` as the slot of `name` holds it; E-SCHED-002 names schedule, step and value.

    f32 takes a real number that is finite in f32, i32 a whole one in its range, i1 a bool.
    """
    scalar = _scalar(value)
    if scalar is None:
        raise _refused(name, step, value, "a real number")
    if dtype == "i1":
        if not isinstance(scalar, bool):
            raise _refused(name, step, value, "a bool")
        return scalar
    if isinstance(scalar, bool):
        raise _refused(name, step, value, "a real number, not a bool")
    if not math.isfinite(scalar):
        raise _refused(name, step, value, "a finite number")
    if dtype == "i32":
        if scalar != int(scalar) or not -(2**31) <= scalar < 2**31:
            raise _refused(name, step, value, "a whole number of 32 bits")
        return int(scalar)
    if abs(scalar) > _F32_LARGEST:
        raise _refused(name, step, value, "a number that f32 holds")
    return float(scalar)


_F32_LARGEST = float(np.finfo(np.float32).max)


def _scalar(value: Any) -> Number | None:
    """The Python number of a number or 0-d array of a real dtype; None for anything else."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | bytes | complex) or value is None or not hasattr(value, "dtype"):
        return None
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind in "cOSUmM":
        return None
    if array.dtype.kind == "b":
        return bool(array)
    return int(array) if array.dtype.kind in "iu" else float(array)


def _refused(name: str, step: int, value: Any, expected: str) -> ScheduleError:
    return ScheduleError(
        2,
        f"schedule {name} gave {_show(value)} at step {step}, expected {expected}",
        where=f"schedule {name}",
        help="nothing of this step was dispatched; check the schedule at this step",
        step_found=True,
    )


def _show(value: Any) -> str:
    shape = getattr(value, "shape", ())
    kind = type(value).__name__
    if shape != ():
        return f"{kind} of shape {tuple(shape)}"
    return f"{value!r}" if kind in ("bool", "int", "float", "complex", "str") else f"{kind} {value}"
