"""The marks of a module in the manifest and in reports, from hand-made modules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tiny_bundle import train_step

from nitro_dialect.ir import Function, Mark, Module, Parameter
from nitro_dialect.types import F32, I64
from nitro_runtime.manifest import ReportWord
from nitroc import placed

GUARD = Mark("b{layer=3}", "guard", "b", (("layer", 3),), source="exp.py:41:5")
FINITE = Mark("x", "finite", "x", source="exp.py:43:5")
METRIC = Mark("a", "metric", "a", below=20.0, above=-math.inf, source="exp.py:42:5")
DIAGNOSTIC = Mark("d", "diagnostic", "d", reduce="max", source="exp.py:50:9")


def module(*marks: Mark, **functions: list[str]) -> Module:
    """A module with these marks; functions (`objective__grad`) by the channels they return."""
    made = Module("M", marks={mark.key: mark for mark in marks})
    for name, channels in functions.items():
        results = [Parameter(f"mark.{c}", F32 if c[-3:] == "sum" else I64) for c in channels]
        name = name.replace("__", ".")
        made.functions[name] = Function(name, (), (Parameter("loss", F32), *results), "00")
    return made


def emitted(**words: list[str]) -> dict[str, Any]:
    """Programs whose reports have these words."""
    return {
        name.replace("__", "."): replace(
            train_step(), report=tuple(ReportWord(w, "f32", 0, 1) for w in found)
        )
        for name, found in words.items()
    }


def test_each_mark_with_the_programs_whose_reports_have_it() -> None:
    programs = emitted(
        train_step=["loss", "guard/b{layer=3}", "guard/b{layer=3}:odd", "mark/a:sum", "mark/a:n"],
        train_step_sampled=["guard/b{layer=3}", "mark/d:max", "guard/a"],
        forward__b4=["guard/a"],
    )
    entry = placed.guards_entry(module(GUARD, METRIC, DIAGNOSTIC), programs)
    assert list(entry.placed) == ["b{layer=3}", "a", "d"]
    assert [e.index for e in entry.placed.values()] == [0, 1, 2]
    guard, metric, diagnostic = entry.placed.values()
    assert guard.programs == ("train_step", "train_step_sampled")
    assert (guard.kind, guard.name, guard.metadata) == ("guard", "b", {"layer": 3})
    assert metric.programs == ("train_step", "train_step_sampled", "forward.b4")
    assert (metric.below, metric.above, metric.source) == (20.0, "-inf", "exp.py:42:5")
    assert (diagnostic.programs, diagnostic.reduce) == (("train_step_sampled",), "max")


def test_lines_say_what_a_mark_is_where_it_runs_and_what_it_changes() -> None:
    programs = emitted(train_step=["guard/b{layer=3}", "guard/x"], forward__b4=["guard/x"])
    lines = list(placed.lines(placed.guards_entry(module(GUARD, FINITE, DIAGNOSTIC), programs)))
    assert lines == [
        ("b{layer=3}", "guard, in train_step", "exp.py:41:5"),
        ("x", "assert_finite, in train_step, forward.b4", "exp.py:43:5"),
        (
            "d",
            "diagnostic, reduce max, never run: its hook is not part of training",
            "exp.py:50:9",
        ),
        ("short batches", "not filled in a pass: a filled row would count in x", ""),
    ]
    bounded = placed.guards_entry(module(METRIC), emitted(train_step=["mark/a:sum"]))
    assert [line[1] for line in placed.lines(bounded)] == [
        "metric, below 20.0, above -inf, in train_step"
    ]


OPTIMIZER = replace(GUARD, meta=(("group", "default"),))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (module(), False),
        (module(GUARD, objective=["b{layer=3}:count"]), True),
        (module(METRIC, objective=["a:sum", "a:n"]), False),
        (module(METRIC, objective=["a:sum", "a:n"], objective__sampled=["a:count"]), True),
        (module(GUARD, forward__b4=["b{layer=3}:count"]), False),
        (module(OPTIMIZER), True),
        (module(replace(METRIC, meta=OPTIMIZER.meta)), True),
        (module(replace(METRIC, meta=OPTIMIZER.meta, below=None, above=None)), False),
    ],
)
def test_whether_a_step_can_count(made: Module, expected: bool) -> None:
    assert placed.counts(made) is expected
