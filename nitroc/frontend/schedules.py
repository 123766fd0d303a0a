"""Schedules by the scalar slot they drive; what may be scheduled, and what each name means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from nitro_runtime.errors import ScheduleError
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.names import did_you_mean
from nitroc.frontend.optimizer import DEFAULTS, GROUP, accessor_location, scalar_name
from nitroc.frontend.options import is_method
from nitroc.rules import Rule


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule as given: `value` is a number or a callable, still to be called.

    `key` is the optimizer's or the Device field's name, `scalar` the slot it drives. A
    `grouped` one was given for a parameter group, which then does not take the bare one.
    """

    key: str
    target: Literal["opt", "device"]
    scalar: str
    value: Any
    grouped: bool = False


_FIXED = {
    "gradient_clip_norm": "the clip is part of the program",
    "decay_anchor": "the anchor is fixed while a run goes on",
    "no_decay": "which leaves decay is part of the program",
    "accum": "the number of micro-batches is part of the program",
}


def read_schedules(
    experiment: Experiment,
    schedules: Mapping[str, Any] | None,
    rule: Rule,
    scalars: Iterable[str],
    arrays: Iterable[str],
) -> dict[str, ScheduleEntry]:
    """The schedules by the scalar slot they drive.

    `scalars` and `arrays` are the Device fields that are slots and that are not. E-SCHED-040 for
    an unknown name, -041 for one that is both, -042 for what can't be scheduled, -043 for a bare
    weight_decay curve beside a weight_decay method, -044 for two of one slot.
    """
    known = _Known(experiment, rule, frozenset(scalars), frozenset(arrays))
    entries: dict[str, ScheduleEntry] = {}
    for name, value in (schedules or {}).items():
        for entry in known.entries(name, value):
            other = entries.get(entry.scalar)
            if other is not None and other.grouped == entry.grouped:
                raise _twice(entry)
            if other is None or entry.grouped:
                entries[entry.scalar] = entry
    return entries


def _twice(entry: ScheduleEntry) -> ScheduleError:
    return ScheduleError(
        44,
        f"{entry.key} has two schedules, one by its bare name and one under {entry.target!r}",
        where=f"schedules[{entry.key!r}]",
        help="keep one of them",
    )


@dataclass(frozen=True)
class _Known:
    experiment: Experiment
    rule: Rule
    scalars: frozenset[str]
    arrays: frozenset[str]

    @property
    def optimizer(self) -> tuple[str, ...]:
        return (*DEFAULTS, *self.rule.fields)

    def entries(self, name: str, value: Any) -> list[ScheduleEntry]:
        if name == "opt" and isinstance(value, Mapping):
            return [e for k, v in _items(value) for e in self._group(k, v)]
        if name == "device" and isinstance(value, Mapping):
            return [self._device(key, inner) for key, inner in _items(value)]
        if name in self.optimizer and name in self.scalars:
            raise ScheduleError(
                41,
                f"schedule {name!r} means an optimizer field and a Device field",
                where=f"schedules[{name!r}]",
                help=f'write {{"opt": {{"{name}": ...}}}} or {{"device": {{"{name}": ...}}}}',
            )
        return [self._device(name, value) if name in self.scalars else self._opt(name, value)]

    def _group(self, name: str, value: Any) -> list[ScheduleEntry]:
        if not isinstance(value, Mapping):
            return [self._opt(name, value)]
        if name != GROUP:
            raise ScheduleError(
                40,
                f"there is no parameter group {name!r}",
                where=f"schedules['opt'][{name!r}]",
                help=did_you_mean(name, [GROUP], "groups"),
            )
        return [self._opt(key, inner, grouped=True) for key, inner in _items(value)]

    def _opt(self, name: str, value: Any, *, grouped: bool = False) -> ScheduleEntry:
        if name not in self.optimizer:
            raise self._refuse(name, (*self.optimizer, *self.scalars))
        if name == "weight_decay" and not grouped and is_method(self.experiment, name):
            raise ScheduleError(
                43,
                "the schedule weight_decay sets every group's coefficient, and the method "
                "weight_decay(self, group) would bind nowhere",
                where=accessor_location(self.experiment, name),
                help='keep one of them, or write {"opt": {"default": {"weight_decay": ...}}}',
            )
        return ScheduleEntry(name, "opt", scalar_name(name, self.scalars), value, grouped)

    def _device(self, name: str, value: Any) -> ScheduleEntry:
        if name not in self.scalars:
            raise self._refuse(name, tuple(self.scalars))
        return ScheduleEntry(name, "device", name, value)

    def _refuse(self, name: str, known: tuple[str, ...]) -> ScheduleError:
        why = self._why_fixed(name)
        if why:
            return ScheduleError(
                42,
                f"{name} can't be scheduled: {why}",
                where=f"schedules[{name!r}]",
                help="schedule a scalar Device field, or an optimizer field",
            )
        return ScheduleError(
            40,
            f"schedule {name!r} names no optimizer field and no scalar Device field",
            where=f"schedules[{name!r}]",
            help=did_you_mean(name, set(known), "names"),
        )

    def _why_fixed(self, name: str) -> str | None:
        field = type(self.experiment).__nitro_fields__.get(name)
        if name in self.arrays:
            return "it is a Device array, not a scalar slot"
        if name in self.rule.structure:
            return f"it is part of the structure of {self.rule.name}"
        if name in _FIXED:
            return _FIXED[name]
        if field is not None and field.kind != "device":
            return f"it is a {'GraphConst' if field.kind == 'graphconst' else 'Host'} field"
        return None


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(cast("Mapping[str, Any]", value).items())
