"""An optimizer rule is a plain function; this is what wraps it.

One function has three meanings: run on values of the dialect it builds the rule's text, run on
numpy arrays it is the reference, run on jnp arrays it works inside user code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np

from nitro_dialect import ir
from nitro_dialect.namespace import NAMESPACE
from nitro_dialect.ops import leafwise
from nitroc.errors import OptError
from nitroc.frontend.names import did_you_mean
from nitroc.frontend.source import function_location
from nitroc.rules.body import build_body, content

Start: TypeAlias = "float | Callable[[np.ndarray[Any, Any]], Any]"
Structure: TypeAlias = "bool | int | str"

RESERVED = ("g", "p", "t")
GROUP = "default"
"""The parameters that a rule's marks are counted for."""

APPLIED_TWICE = ("learning_rate", "weight_decay")


def zeros(p: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The start of a slot: f32 zeros of the leaf's shape."""
    return np.zeros(p.shape, np.float32)


def namespace(x: object) -> Any:
    """The array-API namespace of `x`: the dialect's for its values, else numpy or jnp."""
    if isinstance(x, ir.Value):
        return NAMESPACE
    if isinstance(x, np.ndarray | np.generic | bool | int | float):
        return np
    of = getattr(x, "__array_namespace__", None)
    if of is None:
        raise TypeError(f"namespace() takes arrays or IR values, found {type(x).__name__}")
    return of()


@dataclass(frozen=True, eq=False)
class Rule:
    """`g, [p], slots..., [t], *, fields and structure -> unscaled update, slots' next values`.

    `fields` are the schedulable floats, `structure` what is baked in, `slots` how each slot starts,
    `positional` the names before the `*` in the function's order. Two rules with the same content
    are equal: what their bodies compute counts, not where they were written.
    """

    name: str
    function: Callable[..., Any]
    positional: tuple[str, ...]
    slots: Mapping[str, Start]
    fields: Mapping[str, float]
    structure: Mapping[str, Structure]

    def __call__(self, **changes: float | Structure) -> Rule:
        """The rule with other fields or structure; E-OPT-006 names an unknown keyword."""
        fields, structure = dict(self.fields), dict(self.structure)
        for key, value in changes.items():
            if key in fields:
                fields[key] = self._field(key, value)
            elif key in structure:
                structure[key] = self._structure(key, value)
            else:
                raise self._unknown(key)
        return replace(self, fields=fields, structure=structure)

    def update(self, *args: Any, **changes: Any) -> tuple[Any, ...]:
        """Runs the function on numpy or jnp arrays: the unscaled update, then the slots.

        `args` are those before the `*`, in the function's order, and may be given by name too;
        `changes` set fields or structure. `t` and fields take the dtype of `g`.
        """
        given = dict(zip(self.positional, args, strict=False))
        given |= {k: changes.pop(k) for k in self.positional if k in changes}
        settings = {**self.fields, **self.structure, **changes}
        for key in changes:
            if key not in self.fields and key not in self.structure:
                raise self._unknown(key)
        g = given["g"]
        xp, dtype = namespace(g), np.asarray(g).dtype if isinstance(g, float | int) else g.dtype
        for key in ("t",) if "t" in given else ():
            given[key] = xp.asarray(given[key], dtype=dtype)
        for key in self.fields:
            settings[key] = xp.asarray(settings[key], dtype=dtype)
        # A device computes 0/0 in silence where a select discards it; so does the reference.
        with np.errstate(all="ignore"):
            out = self.function(*(given[name] for name in self.positional), **settings)
        return self.results(out)

    def results(self, out: Any) -> tuple[Any, ...]:
        """`out` as a tuple of the update and the slots; E-OPT-005 when it has another length."""
        made: tuple[Any, ...] = cast(Any, out) if isinstance(out, tuple) else (out,)
        expected = 1 + len(self.slots)
        if len(made) == expected:
            return made
        order = ", ".join(["update", *self.slots])
        raise OptError(
            5,
            f"rule {self.name} returned {len(made)} results, expected {expected}: {order}",
            where=self.where,
            help="return the unscaled update, then every slot's next value in order",
        )

    def start(self, slot: str, p: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The first value of `slot` for parameter `p` (or its master): f32 of `p`'s shape."""
        begin = self.slots[slot]
        if not callable(begin):
            return np.full(p.shape, begin, np.float32)
        made = np.asarray(begin(p), np.float32)
        if made.shape != p.shape:
            raise OptError(
                4,
                f"slot {slot} of rule {self.name} starts with shape {made.shape}, "
                f"expected the leaf's {p.shape}",
                where=self.where,
                help="a slot has the shape of its leaf",
            )
        return made

    def build(self, name: str | None = None) -> ir.Rule:
        """The rule as text of the dialect, under `name` (its own by default).

        E-OPT-008 or E-OPT-009, with the function's line, for what has no meaning on its values.
        """
        return ir.Rule(
            name=name or self.name,
            elements=self.elements,
            scalars=self.scalars,
            slots=tuple((slot, _initial(begin)) for slot, begin in self.slots.items()),
            structure=dict(self.structure),
            body=build_body(self, GROUP)[0],
        )

    @property
    def marks(self) -> tuple[ir.Mark, ...]:
        """The calls of `guard`, `metric`, ... in the function, in order.

        Keys are those of the default group (`name{group=default}`): a mark counts per group.
        """
        return build_body(self, GROUP)[1]

    @property
    def leafwise(self) -> bool:
        """Whether it reduces or holds a mark: then it is applied leaf by leaf, not by buffer."""
        return leafwise(build_body(self, GROUP)[0])

    @property
    def elements(self) -> tuple[str, ...]:
        """Per-element arguments: `g`, `p` where taken, slots."""
        return ("g", *(["p"] if "p" in self.positional else []), *self.slots)

    @property
    def scalars(self) -> tuple[str, ...]:
        """Scalar arguments: `t` where taken, then the fields."""
        return (*(["t"] if "t" in self.positional else []), *self.fields)

    @property
    def where(self) -> str:
        """`file:line` of the function."""
        return function_location(self.function)

    @cached_property
    def _content(self) -> tuple[object, ...]:
        settings = {**self.fields, **self.structure}
        return (
            self.name,
            self.elements,
            self.scalars,
            tuple(self.slots.items()),
            tuple((key, type(value).__name__, repr(value)) for key, value in settings.items()),
            content(self.build().body),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        settings = {**self.fields, **self.structure}
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"

    def _unknown(self, key: str) -> OptError:
        known = [*self.fields, *self.structure]
        return OptError(
            6,
            f"rule {self.name} has no keyword {key}",
            where=self.where,
            help=did_you_mean(key, known, f"keywords of {self.name}"),
        )

    def _field(self, key: str, value: object) -> float:
        if isinstance(value, float | int | np.floating | np.integer) and value is not bool(value):
            return float(value)
        raise self._mismatch(key, "a float", value)

    def _structure(self, key: str, value: object) -> Structure:
        kind = type(self.structure[key])
        if type(value) is kind:
            return value
        raise self._mismatch(key, f"a {kind.__name__}", value)

    def _mismatch(self, key: str, expected: str, value: object) -> OptError:
        return OptError(
            7,
            f"{key} of rule {self.name} is {expected}, found {value!r}",
            where=self.where,
            help=f"pass {key} as {expected}",
        )


def _initial(begin: Start) -> str | float:
    if begin is zeros:
        return "zeros"
    return "host" if callable(begin) else float(begin)


def rule(*, slots: Mapping[str, Start] | None = None) -> Callable[[Callable[..., Any]], Rule]:
    """Makes a function an optimizer rule.

    The function takes `g` (the gradient), optionally `p` (the parameter or its f32 master) and `t`
    (the number of this update, from 1), and every slot by name; then keyword-only floats, its
    schedulable fields, and keyword-only bools, ints and strings, its structure. It returns the
    unscaled update, then each slot's next value. A slot starts as `nt.zeros`, a number, or
    `f(p) -> array`. Errors: E-OPT-001 to E-OPT-004, with the function's line.
    """
    starts = dict(slots or {})

    def wrap(function: Callable[..., Any]) -> Rule:
        return _declare(function, starts)

    return wrap


def _declare(function: Callable[..., Any], slots: dict[str, Start]) -> Rule:
    name = function.__name__
    where = function_location(function)
    positional: list[str] = []
    fields: dict[str, float] = {}
    structure: dict[str, Structure] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(_positional(parameter.name, name, slots, where))
        else:
            _keyword(parameter, name, fields, structure, where)
    _check_slots(name, slots, positional, where)
    return Rule(name, function, tuple(positional), slots, fields, structure)


def _positional(found: str, name: str, slots: Mapping[str, Start], where: str) -> str:
    known = [*RESERVED, *slots]
    if found in known:
        return found
    raise OptError(
        1,
        f"rule {name} takes {found} before the *, expected only {', '.join(known)}",
        where=where,
        help=f"declare {found} in slots=, or write it after the * with a default; "
        + did_you_mean(found, known, "names before the *"),
    )


def _keyword(
    parameter: inspect.Parameter,
    name: str,
    fields: dict[str, float],
    structure: dict[str, Structure],
    where: str,
) -> None:
    key, default = parameter.name, parameter.default
    if key in APPLIED_TWICE:
        raise OptError(
            2,
            f"rule {name} declares {key}: ambiguous: applied twice",
            where=where,
            help="a rule returns the unscaled update; the framework applies rate and decay",
        )
    if parameter.kind is parameter.KEYWORD_ONLY and isinstance(default, bool | int | str):
        structure[key] = default
    elif parameter.kind is parameter.KEYWORD_ONLY and isinstance(default, float | np.floating):
        fields[key] = float(default)
    else:
        raise OptError(
            3,
            f"rule {name} takes {parameter}, expected a keyword with a float, bool, int or string "
            "as its default",
            where=where,
            help="floats are schedulable fields; bools, ints and strings are structure",
        )


def _check_slots(name: str, slots: Mapping[str, object], positional: list[str], where: str) -> None:
    wrong = [s for s in slots if s in RESERVED or s not in positional]
    odd = [s for s, v in slots.items() if not callable(v) and not isinstance(v, float | int)]
    problem = (
        f"rule {name} must take g, the gradient" if "g" not in positional
        else f"slot {wrong[0]} of rule {name} is not an argument of its function" if wrong
        else f"slot {odd[0]} of rule {name} starts as {slots[odd[0]]!r}" if odd
        else ""
    )  # fmt: skip
    if problem:
        raise OptError(
            4,
            problem,
            where=where,
            help="each slot is an argument by its name and starts as nt.zeros, a number or f(p)",
        )
