"""The two sides of each benchmark compute the same losses; what alternates trains in turns."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2] / "benchmarks"
STEPS = 3

SMALL: dict[str, dict[str, Any]] = {
    "char_lm": {"width": 16, "heads": 2, "context": 16},
    "leaves100": {"layers": 4},
}
"""Fields of the experiment that the hand-written job takes as arguments."""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    return module


@pytest.mark.parametrize("name", ["digits", "cnn", "char_lm", "leaves100"])
def test_both_sides_compute_the_same_losses(load: Any, name: str, tmp_path: Path) -> None:
    pytest.importorskip("flax")
    pytest.importorskip("optax")
    jobs, handwritten = load("jobs"), load("handwritten")
    small = SMALL.get(name, {})
    experiment = jobs.JOBS[name].experiment(**small)
    source = experiment.build_data()["train"]
    found = jobs.losses(experiment, source, STEPS, tmp_path)
    trainer = handwritten.HandWritten(jobs.JOBS[name].by_hand(**small))
    expected = jobs.first_losses(trainer, source, STEPS)
    assert len(found) == STEPS
    assert jobs.disagreement(found, expected) < 1e-5


def test_what_is_no_number_disagrees(load: Any) -> None:
    jobs = load("jobs")
    assert jobs.disagreement([1.0, 2.0], [1.0, 2.0]) == 0
    assert jobs.disagreement([1.0, float("nan")], [1.0, float("nan")]) == float("inf")
    with pytest.raises(ValueError, match="longer"):
        jobs.disagreement([1.0], [1.0, 2.0])


def test_sides_train_in_turns(load: Any) -> None:
    alternating = load("alternating")
    done: list[str] = []

    def train(turn: Any) -> None:
        while True:
            turn()
            done.append("loop")

    loop = alternating.Standing(train)
    times = alternating.alternate({"call": lambda: done.append("call"), "loop": loop}, 3)
    loop.close()
    assert {name: len(values) for name, values in times.items()} == {"call": 3, "loop": 3}
    assert done == ["call", "loop"] * (3 + alternating.WARM)


def test_what_a_loop_raises_is_raised_where_it_is_waited_for(load: Any) -> None:
    alternating = load("alternating")

    def train(turn: Any) -> None:
        turn()
        raise ValueError("a batch is broken")

    loop = alternating.Standing(train)
    with pytest.raises(ValueError, match="a batch is broken"):
        loop()


def test_a_loop_may_not_end_by_itself(load: Any) -> None:
    alternating = load("alternating")
    loop = alternating.Standing(lambda turn: turn())
    with pytest.raises(RuntimeError, match="ended before it was closed"):
        loop()


def test_a_job_whose_sides_disagree_is_not_timed(load: Any) -> None:
    comparisons = load("comparisons")
    comparisons.agree("digits", [2.0, 1.0], [2.0, 1.0])
    with pytest.raises(RuntimeError, match="digits: the losses differ by 5"):
        comparisons.agree("digits", [2.0, 1.0], [2.0, 2.0])
