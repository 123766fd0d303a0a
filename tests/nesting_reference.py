"""What the marks of a nesting count: in numpy, with Python loops, lane by lane."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from nestings import MODULUS, Around, Nest, joined, lanes_of, source, step

F32 = np.float32


@dataclass
class Counted:
    """The channels of marks, `<name>:<channel>`, as they add up."""

    words: dict[str, Any] = field(default_factory=dict)

    def add(
        self, key: str, value: Any, how: Callable[[Any, Any], Any] = lambda a, b: a + b
    ) -> None:
        self.words[key] = how(self.words[key], value) if key in self.words else value

    def guard(self, name: str, number: float) -> None:
        odd = 3 if math.isnan(number) else int(number < 0)
        self.add(f"{name}:count", 1 if odd else math.ceil(number))
        self.add(f"{name}:odd", odd, max)

    def value(self, name: str, number: float, outside: int) -> None:
        self.add(f"{name}:count", outside)
        self.add(f"{name}:n", 1)


def counted(nest: Nest, v: Any, around: Around, found: Counted) -> Any:
    """Runs the nesting on the numpy value `v`; what its marks count is added to `found`."""
    inner = [_running(each, found) for each in nest.inner]
    match nest.kind, nest.options:
        case "step", _:
            return _f32(step(v, around, np))
        case "mark", (name, form, of):
            _count(name, form, float(source(of, v, around, np)), v, found)
            return v
        case ("sequence", _) | ("jit" | "checkpoint" | "custom_jvp" | "custom_vjp", _):
            calls = nest.options[0] if nest.kind == "jit" else 1
            for function in inner * calls:
                v = function(v, around)
            return v
        case ("scan", (length, _)) | ("fori", (length,)):
            for i in range(length):
                v = inner[0](v, around.at(F32(i)))
            return v
        case "fixed", (length,):
            c = v
            for i in range(length):
                c = _modulo(c + inner[0](v, around.at(F32(i))))
            return c
        case "unread", _:
            inner[0](v, around)
            return v
        case "while", (of,):
            c = v
            for i in range(int(source(of, v, around, np) % 4)):
                c = inner[0](c, around.at(F32(i)))
            return _modulo(c + v)
        case "switch", (of,):
            return inner[int(source(of, v, around, np) % 2)](v, around)
        case "vmap", _:
            lanes = enumerate(lanes_of(v, 2, np))
            return _joined([inner[0](c, around.lane(F32(i))) for i, c in lanes], v)
        case "map", _:
            return _joined([inner[0](c, around) for c in lanes_of(v, 3, np)], v)
        case "vmap_fixed", (count,):
            return _modulo(np.sum([i + inner[0](v, around) for i in range(count)], 0))
        case _:
            # a derivative: its primal runs once
            inner[0](v, around)
            return _f32(step(v, around, np))


def _running(nest: Nest, found: Counted) -> Callable[[Any, Around], Any]:
    return lambda v, around: counted(nest, v, around, found)


def _count(name: str, form: str, n: float, v: Any, found: Counted) -> None:
    match form:
        case "guard":
            found.guard(name, n)
        case "odd":
            found.guard(name, math.nan if n > 3 else n - 3)
        case "int":
            found.guard(name, n - 2)
        case "fraction":
            found.guard(name, n / 4)
        case "metric":
            found.value(name, n, int(not n < 5) + int(not n > 1))
            found.add(f"{name}:sum", n)
        case "finite":
            found.add(f"{name}:count", int(np.sum(v > 3)))
        case _:
            found.value(name, n, int(not n < 5))
            found.add(f"{name}:{form}", n, max if form == "max" else operator.add)


def _f32(x: Any) -> Any:
    return np.asarray(x, F32)


def _modulo(x: Any) -> Any:
    return np.mod(_f32(x), MODULUS)


def _joined(values: list[Any], v: Any) -> Any:
    return _f32(joined(np.stack(values), v, np))


@dataclass(frozen=True)
class Mapped:
    """Which vmaps, by depth, the value, an index and a lane depend on."""

    value: frozenset[int] = frozenset()
    indices: tuple[frozenset[int], ...] = ()
    lanes: tuple[frozenset[int], ...] = ()
    depth: int = 0

    def of(self, name: str) -> frozenset[int]:
        values = {"carry": self.value, "index": self.indices[-1:], "lane": self.lanes[-1:]}
        found = values.get(name, ())
        return found if isinstance(found, frozenset) else frozenset().union(*found)


def per_lane(nest: Nest) -> bool:
    """Whether a mark is in a `while` or `switch` whose predicate differs between lanes."""
    refused: list[Nest] = []
    _mapped(nest, Mapped(), refused)
    return bool(refused)


def _mapped(nest: Nest, now: Mapped, refused: list[Nest]) -> frozenset[int]:
    """The vmaps that the result depends on; `refused` takes what has a predicate per lane."""

    def inner(value: frozenset[int], **changes: Any) -> frozenset[int]:
        return _mapped(nest.inner[0], replace(now, value=value, **changes), refused)

    def looped(value: frozenset[int]) -> frozenset[int]:
        indices = (*now.indices, frozenset[int]())
        for _ in range(now.depth + 1):
            value = value | inner(value, indices=indices)
        return value

    lane = frozenset({now.depth})
    match nest.kind:
        case "step" | "mark":
            return now.value
        case "sequence":
            for each in nest.inner:
                now = replace(now, value=_mapped(each, now, refused))
            return now.value
        case "scan" | "fori" | "fixed":
            return looped(now.value)
        case "while" | "switch":
            predicate = now.of(nest.options[0])
            if predicate and marked(nest):
                refused.append(nest)
            if nest.kind == "while":
                return looped(now.value | predicate)
            return predicate.union(*(_mapped(each, now, refused) for each in nest.inner))
        case "vmap":
            lanes = (*now.lanes, lane)
            return inner(now.value | lane, lanes=lanes, depth=now.depth + 1) - lane
        case "map" if nest.options[0]:
            return inner(now.value | lane, depth=now.depth + 1) - lane
        case "vmap_fixed":
            return inner(now.value, depth=now.depth + 1)
        case "unread":
            inner(now.value)
            return now.value
        case "jit":
            value = now.value
            for _ in range(nest.options[0]):
                value = inner(value)
            return value
        case _:
            return now.value | inner(now.value)


def marked(nest: Nest) -> bool:
    return nest.kind == "mark" or any(map(marked, nest.inner))
