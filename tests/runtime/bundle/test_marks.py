"""Marks in a manifest: their order, their words, and what the loader refuses of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tiny_bundle import (
    CONSTANTS,
    FORWARD,
    IR_TEXT,
    TRAIN,
    WEIGHTS,
    files,
    forward,
    manifest,
    sealed,
    serialize,
    train_step,
)

from nitro_runtime.bundle import Bundle
from nitro_runtime.errors import BundleError
from nitro_runtime.manifest import (
    ArgEntry,
    GuardEntry,
    GuardsEntry,
    ReportWord,
    word_of_mark,
)
from nitroc.bundle.assemble import ProgramPart, assemble

GUARD = "z/close{layer=3}"
DIAGNOSTIC = "a/norm"
STEPS = ("train_step", "train_step_sampled")


def marked() -> dict[str, bytes]:
    """The tiny bundle with a guard, a diagnostic, and the step that samples it."""
    step, words = train_step(), (ReportWord("loss", "f32", 0, 1),)
    count = ReportWord(f"guard/{GUARD}", "i64", 1, 2)
    mean = ReportWord(f"mark/{DIAGNOSTIC}:sum", "f32", 0, 1)
    sampled = replace(
        step,
        name="train_step_sampled",
        artifact=serialize(TRAIN.replace("%steps: tensor<i32>", "%mask: tensor<1xi1>")),
        args=(*step.args[:-1], ArgEntry("mask", "mask", "mask", None, "i1", (1,))),
        report=(mean, count),
    )
    placed = {
        GUARD: GuardEntry("guard", "z/close", STEPS, "exp.py:41:5", {"layer": 3}, index=0),
        DIAGNOSTIC: GuardEntry("diagnostic", "a/norm", STEPS[1:], "exp.py:42:5", index=1),
    }
    dims = {"width": 4, "accum": 1, "capacity": 1}
    return assemble(
        replace(manifest(), guards=GuardsEntry(placed)),
        [
            ProgramPart(replace(step, report=(*words, count)), "train_step", dims),
            ProgramPart(sampled, "train_step_sampled", dims),
            ProgramPart(forward(), "forward", {"width": 4}),
        ],
        functions={"ab" * 32: serialize(FORWARD)},
        ir={"import": IR_TEXT},
        weights=WEIGHTS,
        constants=CONSTANTS,
        host={"exp.py": b"class Tiny: ...\n"},
    )


def test_marks_keep_the_order_of_the_source_and_words_their_meaning() -> None:
    opened = Bundle.from_files(marked()).manifest
    assert list(opened.guards.placed) == [GUARD, DIAGNOSTIC]
    assert [(e.name, e.kind, e.metadata, e.source) for e in opened.report] == [
        ("loss", "step", {}, ""),
        (f"guard/{GUARD}", "guard", {"layer": 3}, "exp.py:41:5"),
    ]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("loss", None),
        ("metric/guard/x.sum", None),
        ("guard/x", ("x", "count")),
        ("guard/x{a=b:odd}", ("x{a=b:odd}", "count")),
        ("guard/x{a=b:c}#2:odd", ("x{a=b:c}#2", "odd")),
        ("guard/x:first", ("x", "first")),
        ("guard/x:first_count", ("x", "first_count")),
        ("mark/x/y:max", ("x/y", "max")),
    ],
)
def test_the_mark_a_word_is_of(word: str, found: tuple[str, str] | None) -> None:
    assert word_of_mark(word) == found


def _place(key: str, **new: Any) -> Callable[[Any], None]:
    def edit(value: Any) -> None:
        value["guards"]["placed"][key].update(new)

    return edit


def _drop(value: Any) -> None:
    del value["guards"]["placed"][GUARD]
    value["guards"]["placed"][DIAGNOSTIC]["index"] = 0
    del value["report"][1]


def _mask(program: str, kind: str, shape: list[int]) -> Callable[[Any], None]:
    def edit(value: Any) -> None:
        arg = value["programs"][program]["args"][-1]
        arg |= {"name": "mask", "role": "mask", "dtype": kind, "shape": shape}

    return edit


def _unmasked(value: Any) -> None:
    value["programs"]["train_step_sampled"]["args"].pop()


@pytest.mark.parametrize(
    ("edit", "where", "said"),
    [
        (_drop, '$.programs["train_step"].report', repr(GUARD)),
        (_place(GUARD, programs=["train_step"]), '["train_step_sampled"].report', repr(GUARD)),
        (_place(GUARD, programs=[*STEPS, "forward.b4"]), ".programs", "found 'forward.b4'"),
        (_place(GUARD, programs=[*STEPS, "none"]), ".programs", "found 'none'"),
        (_place(GUARD, index=1), "$.guards.placed", "found [1, 1]"),
        (_mask("train_step_sampled", "i1", [2]), "sampled", "i1[1], found i1[2]"),
        (_mask("train_step_sampled", "i8", [1]), "sampled", "i1[1], found i8[1]"),
        (_mask("train_step", "i1", [1]), '["train_step"].args', "no mask, found i1[1]"),
        (_unmasked, '["train_step_sampled"].args', "i1[1], found no mask"),
    ],
)
def test_check_7_marks(edit: Callable[[Any], None], where: str, said: str) -> None:
    with pytest.raises(BundleError) as caught:
        Bundle.from_files(sealed(marked(), edit))
    text = str(caught.value)
    assert text.startswith("E-BUNDLE-007")
    assert where in text
    assert said in text


def test_check_11_the_sampled_step_has_the_state_of_the_other() -> None:
    def edit(value: Any) -> None:
        entry = value["programs"]["train_step_sampled"]
        del entry["args"][1], entry["results"][1]
        entry["donate"] = [[0, 0]]

    with pytest.raises(BundleError, match=r"E-BUNDLE-011: .*train_step_sampled.*all 2 buffers"):
        Bundle.from_files(sealed(marked(), edit), trusted=True)


def test_an_older_minor_format_is_read() -> None:
    def edit(value: Any) -> None:
        value["format"] = {"major": 1, "minor": 0}

    assert Bundle.from_files(sealed(files(), edit)).manifest.format.minor == 0
