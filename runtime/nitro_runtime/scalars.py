"""The packed scalars: one f32 word per Device scalar and hyperparameter, one upload per dispatch.

A value is computed in f64 and rounded once; i32 and i1 values are bit-cast into their word, so they
are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nitro_runtime.errors import ScheduleError, UsageError, near
from nitro_runtime.manifest import ScalarEntry
from nitro_runtime.schedules import Number, Schedule, coerce


class Scalars:
    """The current value of every scalar by name, and the schedules that move some of them.

    `version` grows with each change, so that a packed row is uploaded only when it differs.
    """

    def __init__(
        self,
        entries: Sequence[ScalarEntry],
        values: Mapping[str, Number],
        schedules: Mapping[str, Schedule],
    ) -> None:
        self._entries = {entry.name: entry for entry in entries}
        for name in schedules:
            if name not in self._entries:
                raise _unknown(name, self._entries, "schedule")
        missing = [n for n in self._entries if n not in values and n not in schedules]
        if missing:
            raise UsageError(63, f"no value for the scalars {', '.join(sorted(missing))}")
        self.schedules = dict(schedules)
        self.version = 0
        self.values: dict[str, Number] = {
            name: _held(values[name], entry)
            for name, entry in self._entries.items()
            if name in values
        }

    def advance(self, step: int) -> list[str]:
        """Sets every scheduled scalar to its value at `step`; returns new warnings."""
        warnings: list[str] = []
        for name, schedule in self.schedules.items():
            warned = schedule.warning
            self._change(name, schedule(step))
            if schedule.warning is not warned and schedule.warning is not None:
                warnings.append(schedule.warning)
        return warnings

    def scheduled(self) -> dict[str, Number]:
        """The current values of the scheduled scalars."""
        return {name: self.values[name] for name in self.schedules}

    def restore(self, values: Mapping[str, Number]) -> None:
        """Takes up values of an earlier step, as `scheduled` gave them."""
        for name, value in values.items():
            self._change(name, value)

    def _change(self, name: str, value: Number) -> None:
        if self.values.get(name) != value:
            self.values[name] = value
            self.version += 1

    def check(self, name: str, value: Number) -> Number:
        """`value` as the Device scalar `name` would hold it, if it can be set by hand.

        E-USAGE-063 for another name, -064 for a scheduled one, -065 for another kind of value.
        """
        entry = self._entries.get(name)
        if entry is None or entry.kind != "device":
            raise _unknown(name, self.device_names(), "Device scalar")
        if name in self.schedules:
            raise UsageError(
                64,
                f"{name} is scheduled: a value set by hand would last until the next step",
                where=f"field {name}",
                help="take it out of `schedules` first",
            )
        try:
            return _held(value, entry)
        except (ScheduleError, TypeError, ValueError) as error:
            raise UsageError(
                65, f"{name} is {value!r}, expected {entry.dtype}", where=f"field {name}"
            ) from error

    def set(self, name: str, value: Number) -> None:
        """Changes a Device scalar by hand; errors as `check`."""
        self._change(name, self.check(name, value))

    def device_names(self) -> list[str]:
        """The Device scalars, in order."""
        return [entry.name for entry in self._entries.values() if entry.kind == "device"]

    def pack(self, layout: Sequence[ScalarEntry], shape: tuple[int, ...]) -> np.ndarray:
        """A fresh f32 array of `shape` (`[S]` or `[1, S]`) for a program with this layout."""
        row = np.zeros(shape, np.float32)
        words = row.reshape(-1)
        bits = words.view(np.int32)
        for entry in layout:
            if entry.dtype == "f32":
                words[entry.index] = self.values[entry.name]
            else:
                bits[entry.index] = self.values[entry.name]
        return row


def _held(value: Number, entry: ScalarEntry) -> Number:
    """A base value in the slot's type: as a schedule's, but non-finite values may stand."""
    if entry.dtype == "f32" and not isinstance(value, bool):
        return float(value)
    return coerce(value, entry.name, 0, entry.dtype)


def _unknown(name: str, known: Mapping[str, object] | list[str], what: str) -> UsageError:
    names = sorted(known)
    return UsageError(
        63,
        f"no {what} {name!r}{near(name, names)}",
        where=f"field {name}",
        help=f"those there are: {', '.join(names) or 'none'}",
    )
