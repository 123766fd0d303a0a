"""Step arithmetic at the level of the IR: what the passes promise, on numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference import Outcome
from regression import (
    ROWS,
    Settings,
    batch,
    first_params,
    first_state,
    inputs,
    module,
    run_step,
    stages,
)

from nitro_dialect import print_program
from nitro_dialect.ir import Leaf, Module
from nitro_dialect.ops import Accum, ClipByNorm, Fold, FoldLeaf, TreeDiv
from nitro_dialect.types import F32, TreeType
from nitroc import rules
from nitroc.passes import pipeline

PLAIN = Settings(stateful=False, metrics=False)
WEIGHTS = (Leaf("w", "f32", (2,)),)


def fixed(g: Any, loss: Any = 1.0, weight: Any = 1.0) -> Callable[..., Any]:
    """An objective with this gradient, loss and weight, whatever the batch."""
    return lambda p, s, *_: (loss, weight, g, s)


def one_step(
    config: Settings, leaves: tuple[Leaf, ...], params: Any, objective: Callable[..., Any]
) -> Outcome:
    stage = stages(config, module(config, leaves))["expand"]
    rows = batch(config, np.random.default_rng(0))
    values = inputs(config, stage, params, first_state(config), rows)
    return run_step(config, stage, values, objective)


def applied(config: Settings, g: list[float]) -> np.ndarray:
    """What SGD subtracts for the gradient `g`, at rate 1."""
    params = {"w": np.zeros(2, np.float32)}
    out = one_step(config, WEIGHTS, params, fixed({"w": np.float32(g)}))
    return -out.assigned["p"]["w"]


@pytest.mark.parametrize("guard", [True, False])
def test_A03_clip_once(guard: bool) -> None:
    def config(clip: float) -> Settings:
        return Settings(clip=clip, guard=guard, stateful=False, metrics=False, learning_rate=1.0)

    assert np.linalg.norm(applied(config(0.5), [30.0, -40.0])) == pytest.approx(0.5, abs=1e-6)
    np.testing.assert_array_equal(applied(config(5.0), [3.0, 4.0]), [3.0, 4.0])
    np.testing.assert_array_equal(applied(config(1.0), [0.0, 0.0]), [0.0, 0.0])


def test_A03_no_clip_has_no_clip_op() -> None:
    found = stages(PLAIN)
    for stage in found.values():
        assert "clip" not in print_program(stage.programs["train_step"])
    clips = [op for op in stages(Settings(clip=1.0))["clip"].programs["train_step"].body.ops
             if isinstance(op, ClipByNorm)]  # fmt: skip
    assert len(clips) == 1


def test_A04_bf16_gradients_are_summed_in_f32() -> None:
    leaves = (Leaf("w", "bf16", (70_000,)),)
    config = Settings(accum=2, clip=100.0, stateful=False, metrics=False, learning_rate=1.0)
    program = stages(config, module(config, leaves))["clip"].programs["train_step"]
    kinds = {type(op): op for op in program.body.ops}
    wide = TreeType("default", "f32")
    assert kinds[Accum].results[2].type == wide
    assert kinds[TreeDiv].results[0].type == kinds[ClipByNorm].results[0].type == wide
    assert [p.type for p in kinds[FoldLeaf].body.params] == [F32]
    ones = {"w": np.ones(70_000, np.float32)}
    params = {"w": np.zeros(70_000, np.float32)}
    out = one_step(config, leaves, params, fixed(ones))
    scale = 100 / np.sqrt(70_000)
    np.testing.assert_allclose(-out.assigned["master"]["w"], scale, rtol=1e-6)
    assert f"{scale:.3f}" == "0.378"


def test_A05_decay_moves_flagged_leaves_only() -> None:
    leaves = (
        Leaf("bias", "f32", (2,)),
        Leaf("norm.scale", "f32", (2,)),
        Leaf("w", "f32", (2, 2), frozenset({"decay"})),
    )
    params = {leaf.path: np.ones(leaf.shape, np.float32) for leaf in leaves}
    zero = {path: np.zeros_like(p) for path, p in params.items()}
    config = Settings(decay=0.5, stateful=False, metrics=False, rule=rules.RAdam)
    out = one_step(config, leaves, params, fixed(zero, loss=0.0)).assigned["p"]
    np.testing.assert_allclose(out["w"], 0.95, rtol=1e-7)
    np.testing.assert_array_equal(out["bias"], 1)
    np.testing.assert_array_equal(out["norm.scale"], 1)


@pytest.mark.parametrize("accum", [1, 2, 3])
def test_A16_step_loss_is_the_mean_of_its_micro_batches(accum: int) -> None:
    config = Settings(accum=accum, stateful=False, metrics=False)
    stage = stages(config)["expand"]
    params = first_params(config, np.random.default_rng(0))
    zero = {path: np.zeros_like(p) for path, p in params.items()}

    def square(
        p: Any, s: Any, shift: Any, seed: Any, step: Any, micro: Any, m: Any, *_: Any
    ) -> Any:
        return m[0] ** 2, 1.0, zero, s

    lines: list[float] = []
    for start in range(1, 7, accum):
        rows = batch(config, np.random.default_rng(0))
        rows["m"] = np.repeat(np.arange(start, start + accum), ROWS).reshape(accum, ROWS)
        values = inputs(config, stage, params, {}, rows)
        lines.append(float(run_step(config, stage, values, square).report["loss"]))
        expected = np.mean([k * k for k in range(start, start + accum)])
        assert lines[-1] == pytest.approx(expected)
    assert np.mean(lines) == pytest.approx(91 / 6)


@pytest.mark.parametrize("accum", [1, 2, 4])
def test_A17_unequal_weights_are_those_of_the_merged_batch(accum: int) -> None:
    """Micro-batches of 16 / accum rows each: the rows of all are 16."""
    config = Settings(accum=accum, stateful=False, metrics=False, learning_rate=1.0)
    rng = np.random.default_rng(3)
    w, y = np.float32([0.5, -1.0]), rng.normal(size=(16, 2))
    weight = rng.uniform(0.1, 3, 16)
    parts = np.arange(16).reshape(accum, -1)

    def objective(p: Any, s: Any, shift: Any, seed: Any, step: Any, micro: Any, *_: Any) -> Any:
        rows = parts[int(micro)]
        error, m = p["w"] - y[rows], weight[rows]
        loss = (m[:, None] * error**2 / 2).sum()
        return loss, m.sum(), {"w": (m[:, None] * error).sum(0)}, s

    out = one_step(config, WEIGHTS, {"w": w}, objective)
    g = (weight[:, None] * (w - y)).sum(0) / weight.sum()
    loss = (weight[:, None] * (w - y) ** 2 / 2).sum() / weight.sum()
    np.testing.assert_allclose(out.assigned["p"]["w"], w - g, rtol=0, atol=1e-6)
    assert float(out.report["loss"]) == pytest.approx(loss, rel=1e-6)
    assert float(out.report["weight"]) == pytest.approx(weight.sum(), rel=1e-6)


@pytest.mark.parametrize("weight", [0.0, -1.0])
@pytest.mark.parametrize("accum", [1, 2])
def test_A17_no_weight_is_no_step(accum: int, weight: float) -> None:
    config = Settings(accum=accum, stateful=False, metrics=False, rule=rules.Momentum)
    params = {"w": np.float32([1, 2])}
    out = one_step(config, WEIGHTS, params, fixed({"w": np.zeros(2)}, loss=0.0, weight=weight))
    assert not out.report["committed"]
    assert out.report["weight"] == accum * weight
    np.testing.assert_array_equal(out.assigned["p"]["w"], params["w"])
    assert int(out.assigned["t"]) == int(out.assigned["attempt"]) == 0


@pytest.mark.parametrize(
    ("g", "loss", "first"),
    [([1.0, np.nan], 1.0, 0), ([np.inf, 1.0], 1.0, 0), ([1e30, 1.0], 1.0, 0), ([1, 1], np.nan, -1)],
)
def test_a_step_that_is_not_finite_changes_nothing_and_halts(
    g: list[float], loss: float, first: int
) -> None:
    config = Settings(clip=1.0, stateful=False, metrics=False, rule=rules.Adam)
    params = {"w": np.float32([1, 2])}
    stage = stages(config, module(config, WEIGHTS))["expand"]
    values = inputs(config, stage, params, {}, batch(config, np.random.default_rng(0)))
    out = run_step(config, stage, values, fixed({"w": np.float32(g)}, loss))
    assert (bool(out.report["committed"]), int(out.report["first_bad"])) == (False, first)
    kept = {k: v for k, v in out.assigned.items() if k != "halted"}
    for name, value in kept.items():
        np.testing.assert_equal(value, values[name])
    assert bool(out.assigned["halted"])
    after = run_step(config, stage, {**values, **out.assigned}, fixed({"w": np.ones(2)}))
    assert not after.report["committed"]
    assert bool(after.assigned["halted"])
    np.testing.assert_equal(after.assigned["p"], params)


def test_a_scalar_that_is_not_finite_is_caught() -> None:
    config = Settings(decay=0.1, stateful=False, metrics=False, rule=rules.Momentum)
    stage = stages(config, module(config, WEIGHTS))["expand"]
    params = {"w": np.float32([1, 2])}
    values = inputs(config, stage, params, {}, batch(config, np.random.default_rng(0)))
    for name in config.scalars:
        bad = {**values, name: np.float32(np.nan)}
        assert not run_step(config, stage, bad, fixed({"w": np.ones(2)})).report["committed"], name


def test_A12_a_narrow_parameter_follows_its_master() -> None:
    config = Settings(stateful=False, metrics=False, learning_rate=1e-3)
    leaves = (Leaf("w", "bf16", (2,)),)
    stage = stages(config, module(config, leaves))["expand"]
    rows = batch(config, np.random.default_rng(0))
    values = inputs(config, stage, {"w": np.ones(2, np.float32)}, {}, rows)
    for _ in range(100):
        values |= run_step(config, stage, values, fixed({"w": np.ones(2)})).assigned
    np.testing.assert_allclose(values["p"]["w"].astype(np.float32), 0.9, atol=2e-3)
    without = Settings(stateful=False, metrics=False, master=False)
    names = [i.value.name for i in stages(without)["expand"].programs["train_step"].inputs]
    assert "master" not in names


def test_decay_acts_on_the_master() -> None:
    """A parameter's rounding is not what decays: 20 steps of 1 % on a bf16 leaf."""
    config = Settings(decay=0.1, stateful=False, metrics=False)
    leaves = (Leaf("w", "bf16", (2,), frozenset({"decay"})),)
    stage = stages(config, module(config, leaves))["expand"]
    rows = batch(config, np.random.default_rng(0))
    values = inputs(config, stage, {"w": np.ones(2, np.float32)}, {}, rows)
    for _ in range(20):
        values |= run_step(config, stage, values, fixed({"w": np.zeros(2)})).assigned
    np.testing.assert_allclose(values["master"]["w"], 0.99**20, rtol=1e-5)


def train_text(pipe: str, config: Settings) -> str:
    made = pipeline.run(module(config), pipe, roundtrip=True)
    return print_program(made.programs["train_step"])


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("accum", [1, 2])
def test_D06_no_guard_leaves_no_trace(accum: int, clip: float | None) -> None:
    config = Settings(accum=accum, clip=clip, guard=False, decay=0.1, rule=rules.RAdam)
    text = train_text(config.pipeline, config)
    assert text == train_text(config.pipeline.replace("guard{finite=false},", ""), config)
    assert not re.search(r"guard|halted|committed|first_bad|commit|is_finite", text)


def lines(stage: Module) -> int:
    return print_program(stage.programs["train_step"]).count("\n")


def test_a_program_is_as_long_for_four_leaves_as_for_four_hundred() -> None:
    config = Settings(accum=2, clip=1.0, decay=0.1, rule=rules.RAdam)

    def leaves(count: int) -> tuple[Leaf, ...]:
        return tuple(Leaf(f"w_{i}", "f32", (i + 1, 2)) for i in range(count))

    few, many = (stages(config, module(config, leaves(n))) for n in (4, 400))
    assert {k: lines(v) for k, v in few.items()} == {k: lines(v) for k, v in many.items()}


def test_only_the_train_step_is_transformed() -> None:
    config = Settings(accum=2, clip=1.0)
    found = stages(config)
    for name in ("forward.b4", "reduce.b4.r3", "init"):
        before, after = (print_program(found[s].programs[name]) for s in ("import", "expand"))
        assert before == after


def test_the_norm_is_made_once() -> None:
    config = Settings(clip=1.0)
    ops = stages(config)["commit"].programs["train_step"].body.ops
    assert sum(isinstance(op, FoldLeaf) for op in ops) == 1
    assert not any(isinstance(op, Fold) for op in ops)
