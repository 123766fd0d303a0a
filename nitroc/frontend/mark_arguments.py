"""What a mark is called with: its name, metadata and bounds, and the number it watches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nitro_dialect import ir
from nitro_dialect.ir import Mark, Meta
from nitro_runtime import places
from nitro_runtime.errors import near
from nitroc.errors import ContractError
from nitroc.frontend.mark_primitive import is_tracer
from nitroc.frontend.source import user_position

REDUCES = ("mean", "max", "min", "sum")
RESERVED = ("split", "stage", "group", "param")
"""Metadata that nitroc fills in."""

CALLED = {"finite": "assert_finite"}
"""What a kind of mark is called by, where that is another word."""

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,200}")


def checked_mark(
    kind: str,
    name: object,
    meta: Mapping[str, object],
    *,
    reduce: object = "mean",
    below: object = None,
    above: object = None,
) -> Mark:
    """The mark of a call, its static arguments checked; `source` is filled in when it is used."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ContractError(
            23,
            f"{CALLED.get(kind, kind)} has the name {name!r}",
            where=line(),
            help="letters, digits and _ . / - only, at most 200 of them; what varies is metadata",
        )
    if not isinstance(reduce, str) or reduce not in REDUCES:
        raise ContractError(
            24,
            f"diagnostic {name} has reduce={reduce!r}",
            where=line(),
            help=f"one of {' '.join(REDUCES)}{near(str(reduce), REDUCES)}",
        )
    pairs = tuple((key, _checked_meta(name, key, value)) for key, value in sorted(meta.items()))
    low, high = _checked_bound(name, "below", below), _checked_bound(name, "above", above)
    return Mark("", kind, name, pairs, reduce, low, high)


def _checked_meta(name: str, key: str, value: object) -> Meta:
    if key in RESERVED:
        raise ContractError(
            22,
            f"the metadata {key} of {name} is filled in by nitroc",
            where=line(),
            help=f"rename it; {' '.join(RESERVED)} are reserved",
        )
    if not key.isprintable():
        raise ContractError(
            22,
            f"a name of metadata of {name} is {key!r}, which is no line of text",
            where=line(),
            help="give printable text",
        )
    if is_tracer(value):
        raise ContractError(
            22,
            f"the metadata {key} of {name} is a traced value ({jax.typeof(value)})",
            where=line(),
            help="unroll the loop in Python (for i in range(n)), so that it is a number",
        )
    if not isinstance(value, bool | int | float | str):
        raise ContractError(
            22,
            f"the metadata {key} of {name} is a {_type_name(value)}",
            where=line(),
            help="give a Python str, int, float or bool",
        )
    if isinstance(value, str):
        return _checked_text(name, key, str(value))
    plain = value if isinstance(value, bool) else _plain_number(value)
    # one NaN object: metadata with a NaN is equal to itself
    return math.nan if plain != plain else plain


def _type_name(value: object) -> str:
    """`numpy.bool` is not `bool`."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _plain_number(value: int | float) -> int | float:
    return int(value) if isinstance(value, int) else float(value)


def _checked_text(name: str, key: str, value: str) -> str:
    if value.isprintable():
        return value
    raise ContractError(
        22,
        f"the metadata {key} of {name} is {value!r}, which is no line of text",
        where=line(),
        help="give printable text",
    )


def _checked_bound(name: str, which: str, bound: object) -> float | None:
    if bound is None:
        return None
    if is_tracer(bound):
        comparison = ">=" if which == "below" else "<="
        raise ContractError(
            22,
            f"the bound {which} of {name} is a traced value ({jax.typeof(bound)})",
            where=line(),
            help=f"nt.guard({name!r}, nt.count_where(~(value "
            f"{'<' if which == 'below' else '>'} bound))), which counts value {comparison} bound "
            "and NaN",
        )
    if isinstance(bound, bool) or not isinstance(bound, int | float) or bound != bound:
        raise ContractError(
            22,
            f"the bound {which} of {name} is {bound!r}, expected a Python number",
            where=line(),
            help="give an int or a float",
        )
    try:
        return float(bound)
    except OverflowError:
        return math.inf if bound > 0 else -math.inf


def check_number(mark: Mark, value: object, *, bools: bool) -> None:
    if is_value(value):
        return
    what = spoken(mark)
    word = "count" if mark.kind == "guard" else "value"
    given: Any = value if hasattr(value, "dtype") else np.asarray(value)
    if not bools and jnp.issubdtype(given.dtype, jnp.bool_):
        raise ContractError(
            20,
            f"{what} is given a bool, expected how many",
            where=line(),
            help=f"nt.guard({mark.name!r}, nt.count_where(mask))",
        )
    if np.ndim(given):
        fix = "jnp.sum(count)" if word == "count" else "jnp.mean(value), or another reduction"
        raise ContractError(
            20,
            f"{what} is given a {word} of shape {tuple(np.shape(given))}, expected rank 0",
            where=line(),
            help=f"reduce it: {fix}",
        )
    kinds = (jnp.integer, jnp.floating, jnp.bool_)
    if not any(jnp.issubdtype(given.dtype, kind) for kind in kinds):
        shown = type(value).__name__ if given.dtype == object else given.dtype
        raise ContractError(
            20, f"{what} is given a {word} of type {shown}, expected a real number", where=line()
        )


def spoken(mark: Mark) -> str:
    return f"{CALLED.get(mark.kind, mark.kind)} {mark.name}"


def line() -> str:
    """`file:line` of the call that is running, for an error of its static arguments."""
    place = places.current()
    return user_position(place.root if place else None).rpartition(":")[0]


def is_value(x: object) -> bool:
    return isinstance(x, ir.Value)
