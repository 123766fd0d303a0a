"""What the passes make, emitted: the numpy meaning of the ops == the interpreter == XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emission import Case, Imported, assert_close, assert_same, emit_case, import_function
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Outcome, first_slots, run_program
from regression import (
    DIAGNOSTICS,
    INPUTS,
    ROWS,
    TARGETS,
    Settings,
    batch,
    first_params,
    first_state,
    gradient,
    mark_values,
    module,
)

from nitroc import rules
from nitroc.passes import pipeline

f32 = jnp.float32
array = jax.ShapeDtypeStruct

CHOICES = st.builds(
    Settings,
    accum=st.integers(1, 3),
    clip=st.sampled_from([None, 0.05, 50.0]),
    guard=st.booleans(),
    rule=st.sampled_from([rules.SGD, rules.Momentum(nesterov=True), rules.Adam, rules.RAdam]),
    decay=st.sampled_from([None, 0.5]),
    bias=st.sampled_from(["f32", "bf16"]),
    master=st.booleans(),
    stateful=st.booleans(),
    metrics=st.booleans(),
    marks=st.booleans(),
)


def imported(config: Settings, sampled: bool = False) -> Imported:
    """`regression.gradient` in jax."""

    def call(bias: Any, kernel: Any, *rest: Any) -> Any:
        mean, rest = (rest[:1], rest[1:]) if config.stateful else ((), rest)
        shift, _, step, micro, m, x, y = rest
        error = x @ kernel + bias.astype(f32) - y - shift - 0.1 * micro - 0.01 * step[1]
        scaled = m[:, None] * error
        sums = [0.5 * (scaled * error).sum(), m.sum()]
        sums += [jnp.abs(scaled).sum(), m.sum()] if config.metrics else []
        sums += mark_values(jnp, x, sampled).values() if config.marks else []
        state = [0.5 * old + 0.5 * x.mean() for old in mean]
        return *sums, scaled.sum(0).astype(bias.dtype), x.T @ scaled, *state

    state = [array((), f32)] if config.stateful else []
    with jax.enable_x64(config.marks):  # counts are i64
        found = import_function(
            "objective.sampled.grad" if sampled else "objective.grad",
            call,
            array((TARGETS,), {"f32": f32, "bf16": jnp.bfloat16}[config.bias]),
            array((INPUTS, TARGETS), f32),
            *state,
            *(array((), f32), array((2,), jnp.uint32), array((2,), jnp.uint32)),
            array((), jnp.int32),
            *(array((ROWS,), f32), array((ROWS, INPUTS), f32), array((ROWS, TARGETS), f32)),
        )
    return Imported("1b" if sampled else "0b", found.artifact)


def emitted(config: Settings, mode: str, sampled: bool = False) -> Case:
    done = pipeline.run(module(config), config.pipeline, roundtrip=True)
    program = "train_step_sampled" if sampled else "train_step"
    return emit_case(done, [imported(config, sampled)], mode=mode, program=program)


def start(config: Settings, case: Case, rng: np.random.Generator) -> dict[str, Any]:
    params = first_params(config, rng)
    return {
        **first_slots(case.module, case.emitted.name, params),
        **{k: np.float32(v) for k, v in config.scalars.items()},
        **batch(config, rng),
        "p": params,
        "s": first_state(config),
        "seed": np.array([0, 7], np.uint32),
        "mask": np.zeros(DIAGNOSTICS, np.bool_),
    }


def meaning(config: Settings, case: Case, values: dict[str, Any]) -> Outcome:
    functions = {
        "objective.grad": gradient(config),
        "objective.sampled.grad": gradient(config, sampled=True),
    }
    name = case.emitted.name
    wanted = [i.value.name for i in case.module.programs[name].inputs]
    return run_program(case.module, name, {k: values[k] for k in wanted}, functions)


def check(made: dict[str, Any], wanted: Outcome, rtol: float) -> None:
    report = made.pop("report")
    assert report.keys() == wanted.report.keys()
    for name, value in wanted.report.items():
        assert_close(report[name], value, name, rtol)
    for name, value in wanted.assigned.items():
        if value != {}:
            assert_close(made[name], value, name, rtol)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(CHOICES, st.sampled_from(["auto", "flat", "leaves"]), st.integers(0, 2**16))
def test_two_steps_are_what_the_ops_mean(config: Settings, mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = emitted(config, mode)
    values = start(config, case, rng)
    narrow = config.bias == "bf16"
    for _ in range(2):
        wanted = meaning(config, case, values)
        for made in (case.run(values), case.interpret(values)):
            check(made, wanted, 2e-2 if narrow else 2e-5)
        values |= {**wanted.assigned, **batch(config, rng)}


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam", "radam"])
def test_every_rule_gives_the_same_bits_in_every_layout(rule: str) -> None:
    named = {"sgd": rules.SGD, "momentum": rules.Momentum, "adam": rules.Adam, "radam": rules.RAdam}
    config = Settings(accum=2, clip=0.05, decay=0.5, rule=named[rule])
    runs: list[dict[str, Any]] = []
    for mode in ("auto", "flat", "leaves"):
        case = emitted(config, mode)
        values = start(config, case, np.random.default_rng(1))
        for _ in range(6):
            values |= case.run(values)
        runs.append({k: values[k] for k in ("p", "t", "s", "report")})
    assert runs[0]["t"] == 6
    assert_same(runs[1], runs[0])
    assert_same(runs[2], runs[0])


def test_a_step_that_is_not_finite_is_refused_with_its_leaf() -> None:
    config = Settings(accum=2, clip=0.05, decay=0.5, rule=rules.Adam)
    case = emitted(config, "auto")
    values = start(config, case, np.random.default_rng(0))
    values["x"][1, 0, 0] = np.inf
    wanted, made = meaning(config, case, values), case.run(values)
    assert not made["report"]["committed"]
    assert made["report"]["first_bad"] == wanted.report["first_bad"] == 0
    assert made["halted"]
    assert_same(made["p"], values["p"])
    assert_same(made["mu"], values["mu"])
    assert made["t"] == 0


@pytest.mark.parametrize("accum", [1, 3])
@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("selected", [(), (0,), (2,), (0, 1, 2)])
def test_D09_the_sampled_step_is_what_its_ops_mean(
    selected: tuple[int, ...], guard: bool, accum: int
) -> None:
    config = Settings(accum=accum, clip=0.05, guard=guard, rule=rules.Adam, marks=True)
    case = emitted(config, "auto", sampled=True)
    values = start(config, case, np.random.default_rng(3))
    values["x"] *= 0.3
    values["x"][-1, 0, 0], values["x"][0, 1, 1] = 0.7, -0.9
    values["mask"][list(selected)] = True
    wanted = meaning(config, case, values)
    assert wanted.report["committed"] == (not {0, 2} & {*selected})
    for made in (case.run(values), case.interpret(values)):
        check(made, wanted, 2e-5)


def test_a_nan_is_never_lost_in_an_extreme() -> None:
    config = Settings(accum=3, guard=False, marks=True)
    case = emitted(config, "auto", sampled=True)
    for k in range(3):
        values = start(config, case, np.random.default_rng(3))
        values["x"][k, 0, 0] = np.nan
        for made in (case.run(values), case.interpret(values)):
            assert np.isnan(made["report"]["mark/peak:max"]), k
            assert np.isnan(made["report"]["mark/low:min"]), k
            assert made["report"]["guard/x"] == 1
            assert not made["report"]["committed"]
            assert made["halted"]


def test_the_sampled_step_takes_a_mask_and_no_number_of_steps() -> None:
    config = Settings(accum=2, marks=True)
    plain, sampled = (emitted(config, "auto", s).emitted for s in (False, True))
    assert [(a.name, a.role, a.dtype, a.shape) for a in sampled.args[-1:]] == [
        ("mask", "mask", "i1", (DIAGNOSTICS,))
    ]
    assert [a for a in plain.args if a.role != "steps"] == list(sampled.args[:-1])
    assert plain.args[-1].role == "steps"
    assert [r for r in plain.results if r.role != "report"] == list(sampled.results[:-1])
    assert sampled.scalars == plain.scalars
    assert sampled.donate == plain.donate
    words = {w.name: (w.dtype, w.words) for w in sampled.report}
    assert words["guard/big{at=1.5,layer=0}"] == ("i64", 2)
    assert words["guard/big{at=1.5,layer=0}:odd"] == ("i32", 1)
    assert words["mark/peak:max"] == words["mark/size:sum"] == ("f32", 1)
    assert words["mark/size:n"] == ("i64", 2)
    assert sampled.results[-1].shape == (1, sum(w.words for w in sampled.report))
