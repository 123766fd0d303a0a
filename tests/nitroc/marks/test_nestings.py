"""Marks in random nestings of control flow and derivation count what plain Python counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marking import X, arguments, traced, words
from nesting_reference import Counted, counted, marked, per_lane
from nestings import DIAGNOSTICS, FORMS, POLICIES, SOURCES, Around, Nest, written

from nitroc.errors import ContractError

AROUND = Around(np.float32(1), np.float32(1))
STEP = Nest("step")

MARKS = st.builds(
    lambda form, of: Nest("mark", (), ("", form, of)),
    st.sampled_from(FORMS),
    st.sampled_from(SOURCES),
)
LEAVES = st.lists(MARKS, min_size=1, max_size=2).flatmap(
    lambda marks: st.sampled_from(
        [Nest("sequence", (*marks, STEP)), Nest("sequence", (STEP, *marks))]
    )
)
OF = st.sampled_from(SOURCES)
LENGTHS = st.integers(1, 3)
OPTIONS: dict[str, tuple[st.SearchStrategy[Any], ...]] = {
    "scan": (st.integers(2, 3), st.sampled_from([1, 2, True])),
    "fixed": (LENGTHS,),
    "fori": (LENGTHS,),
    "vmap_fixed": (LENGTHS,),
    "while": (OF,),
    "switch": (OF,),
    "map": (st.sampled_from([None, 2]),),
    "jit": (st.integers(1, 2),),
    "checkpoint": (st.sampled_from(list(POLICIES)),),
    **dict.fromkeys(("vmap", "unread", "custom_jvp", "custom_vjp", "sequence"), ()),
    **dict.fromkeys(("grad", "vjp", "jvp", "hessian", "linearize"), ()),
}
FORWARD = ("jvp", "hessian", "linearize")
"""What jax can't do through a custom_vjp."""


@st.composite
def nests(draw: st.DrawFn, depth: int = 3) -> Nest:
    if not depth:
        return draw(LEAVES)
    kind = draw(st.sampled_from(list(OPTIONS)))
    options = tuple(map(draw, OPTIONS[kind]))
    others = {"sequence": 1, "switch": draw(st.integers(1, 2))}.get(kind, 0)
    inner = (draw(nests(depth - 1)), *(draw(LEAVES) for _ in range(others)))
    return Nest(kind, inner, options)


def named(nest: Nest, path: str) -> Nest:
    """Each mark under a name of its own: that of its form, and where it is."""
    options = nest.options
    if nest.kind == "mark":
        options = (f"{options[1]}{path}", *options[1:])
    inner = tuple(named(each, f"{path}.{i}") for i, each in enumerate(nest.inner))
    return Nest(nest.kind, inner, options)


def derivable(nest: Nest, forward: bool = False, again: bool = False) -> bool:
    """Whether jax can derive it, and a rule in a `while` is not run again (E-CONTRACT-026)."""
    if nest.kind == "custom_vjp" and forward:
        return False
    if nest.kind in ("custom_jvp", "custom_vjp") and again and marked(nest):
        return False
    forward, again = forward or nest.kind in FORWARD, again or nest.kind == "while"
    return all(derivable(each, forward, again) for each in nest.inner)


def neutral(key: str) -> float:
    return -math.inf if key.endswith(":max") else 0


@settings(max_examples=7, deadline=None, derandomize=True)
@given(st.lists(nests().filter(derivable), min_size=4, max_size=4))
def test_D01_random_nestings(drawn: list[Nest]) -> None:
    every = [named(nest, f"/{i}") for i, nest in enumerate(drawn)]
    for nest in filter(per_lane, every):
        with pytest.raises(ContractError, match="E-CONTRACT-021"):
            traced(lambda x, w, n=nest: written(n)(x, Around(w[0], x[1]))).objective()

    kept = [nest for nest in every if not per_lane(nest)]
    made = traced(lambda x, w: x * w + sum(written(n)(x, Around(w[0], x[1])) for n in kept))
    found = Counted()
    for nest in kept:
        counted(nest, X, AROUND, found)
    # the objective alone is what the static check compares its gradient with
    gradients = [pair[1] for pair in (made.objective(), made.sampled()) if pair]
    values = arguments(made, {"x": X})
    for imported in (*gradients, made.forward(len(X))):
        got = words(imported, values)
        wanted = {key: found.words.get(key, neutral(key)) for key in got}
        assert got == wanted
        sampled = ".sampled" in imported.function.name
        assert all(k in got for k in found.words if sampled or not k.startswith(DIAGNOSTICS))
