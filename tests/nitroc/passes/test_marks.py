"""Marks through the passes, on numpy: what is counted, what stops, what is reported."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reference import Outcome
from regression import (
    DIAGNOSTICS,
    INPUTS,
    ROWS,
    Settings,
    Tree,
    batch,
    first_params,
    first_state,
    inputs,
    mark_values,
    module,
    run_step,
    stages,
)

from nitro_dialect import difference, parse, print_module, print_program
from nitro_dialect.ir import Module
from nitro_dialect.marks import channel_of
from nitro_dialect.ops import Accum, GuardAll
from nitro_dialect.types import TensorType
from nitroc import rules
from nitroc.errors import BuildError
from nitroc.passes import pipeline
from nitroc.programs import train_program

SAMPLED = "train_step_sampled"
PLAIN = Settings(marks=True, stateful=False, metrics=False)
BIG = "guard/big{at=1.5,layer=0}"
COUNTED = [BIG, f"{BIG}:odd", "guard/x", "mark/size:sum", "mark/size:n", "guard/size"]
SEEN = [
    *("mark/peak:max", "mark/peak:n", "guard/peak", BIG, f"{BIG}:odd"),
    *("mark/low:min", "mark/low:n", "guard/x", "mark/size:sum", "mark/size:n", "guard/size"),
    *("mark/seen:sum", "mark/seen:n", "guard/seen"),
]


def rows(config: Settings, *entries: tuple[tuple[int, ...], float]) -> Tree:
    """A batch whose `x` is 0.1 but for `entries`, so that nothing counts."""
    made = batch(config, np.random.default_rng(0))
    made["x"] = np.full((config.accum, ROWS, INPUTS), 0.1, np.float32)
    for place, value in entries:
        made["x"][place] = value
    return made


def started(config: Settings, stage: Module, given: Tree, program: str = "train_step") -> Tree:
    params = first_params(config, np.random.default_rng(0))
    return inputs(config, stage, params, first_state(config), given, program)


def step(
    config: Settings, given: Tree, selected: tuple[int, ...] = (), program: str = "train_step"
) -> Outcome:
    stage = stages(config)["expand"]
    values = started(config, stage, given, program)
    if program == SAMPLED:
        values["mask"][list(selected)] = True
    out = run_step(config, stage, values, program=program)
    assert out.report["halted"] == out.assigned["halted"] == (not out.report["committed"])
    for name, value in values.items():
        if name in out.assigned and not out.report["committed"] and name != "halted":
            np.testing.assert_equal(out.assigned[name], value, name)
    return out


def marks(out: Outcome) -> dict[str, Any]:
    return {k: v for k, v in out.report.items() if k.startswith(("guard/", "mark/"))}


@pytest.mark.parametrize("accum", [1, 3])
@pytest.mark.parametrize("program", ["train_step", SAMPLED])
def test_words_are_in_the_order_of_the_marks_after_the_metrics(program: str, accum: int) -> None:
    config = Settings(accum=accum, marks=True, clip=1.0)
    words = list(step(config, rows(config), program=program).report)
    head = ["loss", "weight", "metric/mae.sum", "metric/mae.count"]
    wanted = SEEN if program == SAMPLED else COUNTED
    assert words == [*head, *wanted, "grad_norm", "committed", "first_bad", "halted"]


@pytest.mark.parametrize("accum", [1, 2, 3])
def test_micro_batches_combine_as_their_channels_do(accum: int) -> None:
    config = replace(PLAIN, accum=accum)
    given = batch(config, np.random.default_rng(4))
    given["x"] *= 2
    each = [mark_values(np, x.astype(np.float64), True) for x in given["x"]]
    combine = {"max": np.max, "odd": np.max, "min": np.min}
    out = step(config, given, program=SAMPLED)
    for name in each[0]:
        key, channel = channel_of(name) or ("", "")
        wanted = combine.get(channel, np.sum)([values[name] for values in each])
        word = {"count": f"guard/{key}", "odd": f"guard/{key}:odd"}.get(
            channel, name.replace(".", "/", 1)
        )
        if key in ("peak", "seen") and channel == "count":
            assert out.report[word] == 0
            continue
        assert out.report[word] == pytest.approx(wanted, rel=1e-6), name
    assert out.report[BIG] > 0
    assert out.report["mark/low:n"] == accum


@pytest.mark.parametrize("program", ["train_step", SAMPLED])
@pytest.mark.parametrize("accum", [1, 2])
@pytest.mark.parametrize(
    ("value", "counted"),
    [(0.1, {}), (1.6, {BIG: 1}), (2.5, {BIG: 1, f"{BIG}:odd": 3}), (40.0, {"guard/size": 1})],
)
def test_any_count_stops_before_the_commit(
    value: float, counted: dict[str, int], accum: int, program: str
) -> None:
    config = replace(PLAIN, accum=accum, rule=rules.Adam, stateful=True)
    out = step(config, rows(config, ((accum - 1, 1, 2), value)), program=program)
    assert bool(out.report["committed"]) == (counted == {})
    for word, count in counted.items():
        assert out.report[word] == count
    assert out.report["first_bad"] == -1


def test_D02_a_bound_counts_each_micro_batch_not_their_mean() -> None:
    config = replace(PLAIN, accum=2)
    given = rows(config)
    given["x"][0], given["x"][1] = 19 / 12, 21 / 12  # |x| summed over 12: 19, then 21
    out = step(config, given)
    assert out.report["guard/size"] == 1
    assert out.report["mark/size:sum"] / out.report["mark/size:n"] == pytest.approx(20)
    assert not out.report["committed"]


@pytest.mark.parametrize("guard", [True, False])
def test_D09_a_bound_of_a_diagnostic_counts_where_it_is_selected(guard: bool) -> None:
    """`peak` is 0.5 or more, `seen` -0.5 or less: element 0 and 2 of the mask."""
    config = replace(PLAIN, guard=guard, accum=2)
    given = rows(config, ((0, 0, 0), 0.7), ((1, 0, 0), 0.8), ((1, 2, 0), -0.9))
    for selected, peak, seen in (((), 0, 0), ((1,), 0, 0), ((0,), 2, 0), ((2,), 0, 1)):
        out = step(config, given, selected, SAMPLED)
        assert (out.report["guard/peak"], out.report["guard/seen"]) == (peak, seen), selected
        assert bool(out.report["committed"]) == (peak == seen == 0), selected
        assert out.report["mark/peak:max"] == np.float32(0.8)
        assert out.report["mark/low:min"] == np.float32(-0.9)
    out = step(config, given)
    assert out.report["committed"]
    assert "guard/peak" not in out.report


def test_a_nan_is_the_largest_and_the_smallest() -> None:
    config = replace(PLAIN, guard=False, accum=3)
    for k in range(3):
        out = step(config, rows(config, ((k, 1, 1), np.nan)), program=SAMPLED)
        assert np.isnan(out.report["mark/peak:max"])
        assert np.isnan(out.report["mark/low:min"])
        assert out.report["guard/x"] == 1
        assert out.report["guard/size"] == 1


def test_without_the_finite_guard_counts_alone_decide() -> None:
    config = replace(PLAIN, guard=False, rule=rules.Momentum, decay=0.1, clip=1.0)
    guard = stages(config)["commit"].programs["train_step"].body.ops
    (test,) = (op for op in guard if isinstance(op, GuardAll))
    assert {k: len(v) for k, v in test.operands.items()} == {"zero": 3, "unset": 1}
    assert "first_bad" not in stages(config)["guard"].programs["train_step"].body.ops[-1].entries
    given = rows(config)
    given["y"][0, 0, 0] = np.nan  # the loss, and no mark
    assert step(config, given).report["committed"]
    assert not step(config, rows(config, ((0, 0, 0), np.nan))).report["committed"]


def without_counts(config: Settings) -> Module:
    """The module before its first pass, its marks without what guards: series alone."""
    made = module(config)
    for name, function in made.functions.items():
        series = [r for r in function.results if not r.name.endswith((":count", ":odd"))]
        made.functions[name] = replace(function, results=tuple(series))
    train_program(made)
    return made


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("accum", [1, 2])
def test_D06_marks_that_count_nothing_leave_no_guard(accum: int, clip: float | None) -> None:
    config = replace(PLAIN, guard=False, accum=accum, clip=clip)
    texts: list[str] = []
    for pipe in (config.pipeline, config.pipeline.replace("guard{finite=false},", "")):
        made = pipeline.run(without_counts(config), pipe, roundtrip=True)
        assert "mark/size:sum" in made.programs["train_step"].body.ops[-1].entries
        texts += [print_program(made.programs[n]) for n in ("train_step", SAMPLED)]
    assert texts[:2] == texts[2:]
    assert not re.search(r"guard|halted|committed|first_bad|commit|is_finite", "".join(texts))


def test_channels_say_how_they_combine() -> None:
    program = stages(replace(PLAIN, accum=2))["accumulate"].programs[SAMPLED]
    (accum,) = (op for op in program.body.ops if isinstance(op, Accum))
    made = {r.name: how for r, how in zip(accum.results, accum.how, strict=False)}
    extremes = {name: how for name, how in made.items() if how != "sum"}
    assert extremes == {"big{at=1.5,layer=0}.odd": "max", "peak.max": "max", "low.min": "min"}


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("accum", [1, 2])
def test_every_pass_works_on_text_that_was_read_again(accum: int, guard: bool) -> None:
    config = Settings(marks=True, accum=accum, guard=guard, clip=1.0, decay=0.1)
    found = stages(config)
    for name, stage in found.items():
        made = pipeline.run(parse(print_module(stage)))
        assert difference(made, found["expand"]) is None, name
        assert print_module(made) == print_module(found["expand"]), name


def test_the_sampled_step_comes_after_the_step_and_has_a_mask() -> None:
    stage = stages(PLAIN)["diagnose"]
    assert list(stage.programs)[:2] == ["train_step", SAMPLED]
    plain, sampled = (stage.programs[n].inputs for n in ("train_step", SAMPLED))
    assert [(i.role, str(i.value)) for i in sampled[:-1]] == [(i.role, str(i.value)) for i in plain]
    assert (sampled[-1].role, sampled[-1].value.type) == ("mask", TensorType("i1", (DIAGNOSTICS,)))
    assert not any(i.role == "mask" for i in plain)


def test_a_field_called_mask_keeps_its_name() -> None:
    start = module(PLAIN)
    for name, function in start.functions.items():
        params = [replace(p, name="mask") if p.name == "m" else p for p in function.params]
        start.functions[name] = replace(function, params=tuple(params))
    train_program(start)
    program = pipeline.run(start, PLAIN.pipeline, roundtrip=True).programs[SAMPLED]
    names = {i.role: i.value.name for i in program.inputs if i.role == "mask"}
    assert (program.input("mask").role, names) == ("batch", {"mask": "mask.run"})


def test_diagnose_names_what_was_not_imported() -> None:
    start = module(PLAIN)
    del start.functions["objective.sampled"], start.functions["objective.sampled.grad"]
    with pytest.raises(
        BuildError, match=r"E-BUILD-005: .*@objective\.sampled, which is @objective"
    ):
        pipeline.run(start, "diagnose")
    start = module(PLAIN)
    del start.functions["objective.sampled.grad"]
    with pytest.raises(BuildError, match=r"E-BUILD-005: .*gradient of @objective\.sampled with"):
        pipeline.run(start, "diagnose,differentiate")


def test_a_diagnostic_outside_the_sampled_step_is_refused() -> None:
    start = module(PLAIN)
    start.marks["x"] = replace(start.marks["x"], kind="diagnostic")
    with pytest.raises(BuildError, match=r"E-BUILD-004: @train_step holds the diagnostic x"):
        pipeline.run(start, PLAIN.pipeline)
