"""Every pass keeps the step's meaning: reference before == reference after, for random steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Outcome
from regression import (
    Settings,
    batch,
    expected_step,
    first_params,
    first_state,
    inputs,
    run_step,
    stages,
)

from nitroc import rules

CHOICES = st.builds(
    Settings,
    accum=st.integers(1, 4),
    clip=st.sampled_from([None, 0.05, 50.0]),
    guard=st.booleans(),
    rule=st.sampled_from(
        [rules.SGD, rules.Momentum, rules.Momentum(nesterov=True), rules.Adam, rules.RAdam]
    ),
    decay=st.sampled_from([None, 0.5]),
    bias=st.sampled_from(["f32", "bf16"]),
    master=st.booleans(),
    stateful=st.booleans(),
    metrics=st.booleans(),
    marks=st.booleans(),
)


def assert_equal(a: Any, b: Any, rtol: float = 0.0) -> None:
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key], rtol)
        return
    wide = [np.asarray(x).astype(np.float64) for x in (a, b)]
    np.testing.assert_allclose(*wide, rtol=rtol, atol=rtol)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CHOICES, st.integers(0, 2**16))
def test_every_stage_computes_the_same_step(config: Settings, seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = stages(config)
    params, state, rows = first_params(config, rng), first_state(config), batch(config, rng)
    rows["x"] *= 0.2  # no mark counts: stages before commit take every step
    done: Outcome | None = None
    for name in list(found)[list(found).index("accumulate") :]:
        stage = found[name]
        now = run_step(config, stage, inputs(config, stage, params, state, rows))
        if done is not None and name != "decay":
            for key in done.assigned:
                assert_equal(done.assigned[key], now.assigned[key])
            for key in done.report:
                assert_equal(done.report[key], now.report[key])
        done = now


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CHOICES.map(lambda config: replace(config, marks=False)), st.integers(0, 2**16))
def test_three_steps_are_those_of_the_definitions(config: Settings, seed: int) -> None:
    """In f64, but for the parameters that are narrower."""
    rng = np.random.default_rng(seed)
    stage = stages(config)["expand"]
    params, state = first_params(config, rng), first_state(config)
    values = inputs(config, stage, params, state, batch(config, rng))
    slots = {k: v for k, v in values.items() if isinstance(v, dict) and k not in ("p", "s")}
    wanted = {"state": state, **slots}
    for t in (1, 2, 3):
        rows = batch(config, rng)
        wanted = expected_step(config, params, {**slots, **wanted}, wanted["state"], t, rows)
        out = run_step(config, stage, {**values, **rows}, wide=True)
        masters = out.assigned.get("master", out.assigned["p"])
        exact = {k: v for k, v in masters.items() if v.dtype == np.float64}
        assert_equal(exact, {k: wanted["p"][k] for k in exact}, 1e-9)
        assert_equal(out.assigned["s"], wanted["state"], 1e-9)
        for name in config.rule.slots:
            assert_equal(out.assigned[name], wanted[name], 1e-9)
        assert_equal(out.report["loss"], wanted["loss"], 1e-9)
        if config.clip:
            assert_equal(out.report["grad_norm"], wanted["norm"], 1e-9)
        assert int(out.assigned["t"]) == int(out.assigned["attempt"]) == t
        values |= out.assigned
        params = values["p"]
        wanted["master"] = masters


def test_differentiate_keeps_everything() -> None:
    config = Settings()
    found = stages(config)
    rng = np.random.default_rng(1)
    rows = {k: v[0] for k, v in batch(config, rng).items()}
    params, state = first_params(config, rng), first_state(config)
    a, b = (
        run_step(config, found[s], inputs(config, found[s], params, state, rows))
        for s in ("import", "differentiate")
    )
    assert_equal(a.assigned, b.assigned)
    assert_equal(a.report, b.report)
