"""Marks inside a rule: read before the step is decided, per parameter, in a first evaluation."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from leafwise import FINITE, LARGE, LIMIT, PEAK, RATIO, trusted, watched
from reference import Outcome, run_program
from regression import (
    DIAGNOSTICS,
    Settings,
    batch,
    first_params,
    first_state,
    inputs,
    module,
    run_step,
    stages,
)

import nitroc as nt
from nitro_dialect import print_program
from nitro_dialect.ir import Leaf, Module, Region
from nitro_dialect.marks import MOST
from nitro_dialect.ops import Commit, GuardAll, LeafMap, Map, OptMarks, OptRule
from nitro_dialect.rewrite import walk
from nitroc import rules
from nitroc.passes import pipeline

LEAVES = (Leaf("a", "f32", (2,)), Leaf("b", "f32", (3,)), Leaf("c", "f32", ()))
PLAIN = Settings(stateful=False, metrics=False, rule=watched)
SAMPLED = Settings(stateful=False, metrics=False, rule=watched, marks=True)


def fixed(g: Any, marks: tuple[Any, ...] = ()) -> Any:
    return lambda p, s, *_: (1.0, 1.0, *marks, g, s)


def gradient(*values: float) -> dict[str, Any]:
    """Leaf by leaf, every element of it."""
    pairs = zip(LEAVES, values, strict=True)
    return {leaf.path: np.full(leaf.shape, value, np.float32) for leaf, value in pairs}


def one_step(config: Settings, g: Any, stage: str = "expand", **given: Any) -> Outcome:
    made = stages(config, module(config, LEAVES))[stage]
    params = {leaf.path: np.ones(leaf.shape, np.float32) for leaf in LEAVES}
    rows = batch(config, np.random.default_rng(0))
    values = inputs(config, made, params, first_state(config), rows) | given
    return run_step(config, made, values, fixed(g))


def top(stage: Module, program: str = "train_step") -> list[str]:
    return [op.mnemonic for op in stage.programs[program].body.ops]


def test_the_first_evaluation_is_before_the_decision_the_second_in_the_commit() -> None:
    found = stages(PLAIN, module(PLAIN, LEAVES))
    ops = top(found["commit"])
    assert ops.index("opt.marks") < ops.index("guard.all") < ops.index("commit")
    assert "opt.rule" not in ops
    inside = [op.mnemonic for op in region(found["commit"]).ops]
    assert inside[:2] == ["opt.rule", "opt.apply"]
    assert top(found["expand"]).count("leaf.map") == 1
    assert [op.mnemonic for op in region(found["expand"]).ops].count("leaf.map") == 1


def region(stage: Module) -> Region:
    """The commit's."""
    ops = stage.programs["train_step"].body.ops
    (commit,) = [op for op in ops if isinstance(op, Commit)]
    return commit.body_


def test_a_count_that_is_zero_lets_the_step_through() -> None:
    out = one_step(PLAIN, gradient(1.0, -2.0, LIMIT))
    assert out.report["committed"]
    assert out.report[f"guard/{LARGE}"] == 0
    assert out.report[f"guard/{LARGE}:first"] == -1
    assert out.report[f"guard/{LARGE}:first_count"] == 0
    assert out.report[f"guard/{LARGE}:odd"] == 0
    assert out.report[f"mark/{RATIO}:sum"] == pytest.approx(6.0)
    assert out.report[f"mark/{RATIO}:n"] == len(LEAVES)
    np.testing.assert_allclose(out.assigned["p"]["b"], 1.2)


@pytest.mark.parametrize("stage", ["optimizer", "decay", "commit", "expand"])
def test_D04_a_rule_that_counts_stops_the_step_and_names_its_first_parameter(stage: str) -> None:
    config = PLAIN if stage != "decay" else Settings(
        stateful=False, metrics=False, rule=watched, decay=0.5
    )  # fmt: skip
    out = one_step(config, gradient(1.0, 5.0, -5.0), stage)
    assert not out.report["committed"]
    assert out.report[f"guard/{LARGE}"] == 4
    assert out.report[f"guard/{LARGE}:first"] == 1
    assert out.report[f"guard/{LARGE}:first_count"] == 3
    assert out.assigned["halted"]
    if stage in ("commit", "expand"):
        np.testing.assert_array_equal(out.assigned["p"]["a"], 1)
        np.testing.assert_array_equal(out.assigned["mu"]["a"], 0)
        assert (out.assigned["t"], out.assigned["attempt"]) == (0, 0)


def test_a_bound_and_a_finite_mark_of_a_rule_count_too() -> None:
    # not too large for the guard of the norm, too large for the bound of the ratio
    out = one_step(PLAIN, gradient(1.0, 100.0, 1.0))
    assert (out.report[f"guard/{RATIO}"], out.report[f"guard/{RATIO}:first"]) == (1, 1)
    assert f"guard/{RATIO}:odd" not in out.report
    out = one_step(PLAIN, gradient(1.0, 1.0, np.nan))
    assert (out.report[f"guard/{FINITE}"], out.report[f"guard/{FINITE}:first"]) == (2, 2)
    assert out.report[f"guard/{FINITE}:first_count"] == 2


@nt.rule()
def counting(g: Any) -> Any:
    nt.guard("g/count", nt.namespace(g).sum(g))
    return g


KEY = "g/count{group=default}"
COUNTS = [
    (0.25, 1, 0), (1.0, 2, 0), (-1.0, 1, 1), (np.inf, 1, 2), (-np.inf, 1, 2), (np.nan, 1, 3),
    (1e30, int(MOST), 0), (3e9, 6 * 10**9, 0),
]  # fmt: skip


@pytest.mark.parametrize(("each", "count", "odd"), COUNTS)
def test_counts_are_whole(each: float, count: int, odd: int) -> None:
    """Of two elements: fractions up, what is no count 1."""
    config = Settings(stateful=False, metrics=False, rule=counting, guard=False)
    out = one_step(config, gradient(each, 0.0, 0.0))
    assert int(out.report[f"guard/{KEY}"]) == count
    assert int(out.report[f"guard/{KEY}:odd"]) == odd
    assert not out.report["committed"]


def test_the_finite_guard_off_leaves_the_marks_of_a_rule() -> None:
    config = Settings(stateful=False, metrics=False, rule=watched, guard=False)
    ops = stages(config, module(config, LEAVES))["optimizer"].programs["train_step"].body.ops
    (guard,) = [op for op in ops if isinstance(op, GuardAll)]
    assert (guard.finite, guard.positive) == ([], [])
    assert len(guard.zero) == 3


def test_without_a_guard_a_rule_reports_its_metrics_only() -> None:
    config = Settings(stateful=False, metrics=False, rule=watched, guard=False)
    text = config.pipeline.replace("guard{finite=false},", "")
    made = pipeline.run(module(config, LEAVES), text, roundtrip=True)
    words = print_program(made.programs["train_step"]).splitlines()[-2]
    assert f'"mark/{RATIO}:n"' in words
    assert "guard/" not in words
    assert not re.search(r"guard\.all|commit", print_program(made.programs["train_step"]))


def test_diagnostics_of_a_rule_are_in_the_sampled_step_and_gated() -> None:
    found = stages(SAMPLED, module(SAMPLED, LEAVES))
    plain, sampled = (found["expand"].programs[n] for n in ("train_step", "train_step_sampled"))
    assert PEAK not in print_program(plain)
    maxima = [op for op in walk(plain.body) if op.attrs.get("how") == "max"]
    assert [op.mnemonic for op in maxima] == ["vec.fold"]  # of `odd`
    assert f'"guard/{PEAK}:first"' in print_program(sampled)
    for chosen in (False, True):
        out = sampled_step(chosen)
        assert bool(out.report["committed"]) is not chosen
        assert out.report[f"mark/{PEAK}:max"] == pytest.approx(2.5)
        assert out.report[f"guard/{PEAK}"] == int(chosen)
        assert out.report[f"guard/{PEAK}:first"] == (1 if chosen else -1)
        assert out.report[f"guard/{PEAK}:first_count"] == int(chosen)


def sampled_step(chosen: bool) -> Outcome:
    """A step whose largest update is 2.5; the bound of the diagnostic is 2."""
    made = stages(SAMPLED, module(SAMPLED, LEAVES))["expand"]
    params = {leaf.path: np.ones(leaf.shape, np.float32) for leaf in LEAVES}
    rows = batch(SAMPLED, np.random.default_rng(0))
    values = inputs(SAMPLED, made, params, {}, rows, "train_step_sampled")
    values["mask"] = np.array([False] * DIAGNOSTICS + [chosen])
    count = len(made.functions["objective.sampled.grad"].results) - 4
    call = fixed(gradient(1.0, -2.5, 0.0), (np.zeros(()),) * count)
    return run_program(made, "train_step_sampled", values, {"objective.sampled.grad": call})


@nt.rule()
def seen(g: Any) -> Any:
    nt.diagnostic("g/peak", nt.namespace(g).max(g), below=1)
    return g


def test_a_rule_is_evaluated_once_where_nobody_reads_its_marks() -> None:
    """The plain step of a rule with diagnostics is that of the rule without them."""
    sampling = Settings(stateful=False, metrics=False, rule=seen, marks=True)
    found = stages(sampling, module(sampling, LEAVES))["optimizer"]
    assert "opt.marks" not in top(found)
    assert "opt.marks" in top(found, "train_step_sampled")
    counting_only = Settings(stateful=False, metrics=False, rule=counting, guard=False)
    text = counting_only.pipeline.replace("guard{finite=false},", "")
    made = pipeline.run(module(counting_only, LEAVES), text, roundtrip=True)
    assert sum(isinstance(op, LeafMap) for op in walk(made.programs["train_step"].body)) == 1


def test_a_rule_without_marks_or_reductions_is_as_it_was() -> None:
    config = Settings(stateful=False, metrics=False, rule=rules.Adam)
    found = stages(config, module(config, LEAVES))
    assert "opt.marks" not in top(found["optimizer"])
    ops = [type(op) for op in walk(found["expand"].programs["train_step"].body)]
    assert Map in ops
    assert LeafMap not in ops


def test_a_rule_that_reduces_is_evaluated_once_leaf_by_leaf() -> None:
    config = Settings(stateful=False, metrics=False, rule=trusted)
    found = stages(config, module(config, LEAVES))
    ops = list(walk(found["optimizer"].programs["train_step"].body))
    assert not any(isinstance(op, OptMarks) for op in ops)
    assert sum(isinstance(op, OptRule) for op in ops) == 1
    expanded = list(walk(found["expand"].programs["train_step"].body))
    assert sum(isinstance(op, LeafMap) for op in expanded) == 1


@pytest.mark.parametrize("rule", [trusted, watched])
def test_a_program_is_as_long_for_four_leaves_as_for_four_hundred(rule: nt.rules.Rule) -> None:
    config = Settings(stateful=False, metrics=False, rule=rule)

    def lines(count: int) -> list[int]:
        leaves = tuple(Leaf(f"w_{i}", "f32", (i + 1, 2)) for i in range(count))
        found = stages(config, module(config, leaves))
        return [print_program(s.programs["train_step"]).count("\n") for s in found.values()]

    assert lines(4) == lines(400)


@pytest.mark.parametrize("bias", ["f32", "bf16"])
@pytest.mark.parametrize("rule", [trusted, watched])
def test_every_stage_computes_the_same_step(rule: nt.rules.Rule, bias: str) -> None:
    config = Settings(accum=2, clip=0.5, rule=rule, bias=bias, decay=0.1)
    rng = np.random.default_rng(1)
    params, state, rows = first_params(config, rng), first_state(config), batch(config, rng)
    found = stages(config)
    outs = [
        run_step(config, found[name], inputs(config, found[name], params, state, rows))
        for name in ("decay", "commit", "expand")
    ]
    assert outs[0].report["committed"]
    for out in outs[1:]:
        np.testing.assert_equal(out.assigned, outs[0].assigned)
        np.testing.assert_equal(out.report, outs[0].report)
