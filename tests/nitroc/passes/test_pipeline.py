"""Pipelines: their text, what they refuse, what they record, resuming from any stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from regression import Settings, module, stages

from nitro_dialect import difference, parse, print_module
from nitro_dialect.ir import Module, Value
from nitro_dialect.ops import Report
from nitro_dialect.types import F32
from nitroc import rules
from nitroc.errors import BuildError, OptError
from nitroc.passes import pipeline
from nitroc.passes.accumulate import Accumulate
from nitroc.passes.clip import Clip
from nitroc.passes.commit import CommitStep
from nitroc.passes.decay import WeightDecay
from nitroc.passes.differentiate import Differentiate
from nitroc.passes.expand import Expand
from nitroc.passes.guard import Guard
from nitroc.passes.optimizer import Optimizer

FULL = Settings(accum=2, clip=1.5, decay=0.1, rule=rules.Adam, bias="bf16")

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,12}", fullmatch=True)
PASSES = st.one_of(
    st.builds(Differentiate),
    st.builds(Accumulate, steps=st.integers(1, 10**6)),
    st.builds(Clip, max=st.floats(0, exclude_min=True, allow_infinity=False)),
    st.builds(Guard, finite=st.booleans()),
    st.builds(Optimizer, rule=NAMES, master=st.booleans()),
    st.builds(WeightDecay, where=NAMES),
    st.builds(CommitStep),
    st.builds(Expand),
)


@given(st.lists(PASSES))
def test_parse_is_the_inverse_of_spell(passes: list[pipeline.Pass]) -> None:
    text = pipeline.spell(passes)
    assert pipeline.parse(text) == passes
    assert pipeline.spell(pipeline.parse(text)) == text


def test_every_pass_is_frozen_and_called_by_its_name() -> None:
    for name, cls in pipeline.PASSES.items():
        assert cls.name == name
        assert dataclasses.is_dataclass(cls)
        assert cls.__dataclass_params__.frozen


def test_spaces_and_defaults_are_read() -> None:
    found = pipeline.parse(" differentiate , accumulate,guard{ policy = stop }, clip{max=1} ")
    assert found == [Differentiate(), Accumulate(1), Guard(), Clip(1.0)]
    assert pipeline.parse("") == []


REFUSED = [
    ("clop{max=1.0}", "E-BUILD-001", "did you mean clip?"),
    ("clip{mx=1.0}", "E-BUILD-002", "did you mean max?"),
    ("clip", "E-BUILD-002", "clip needs max"),
    ("clip{max=big}", "E-BUILD-002", "expected float"),
    ("accumulate{steps=2.0}", "E-BUILD-002", "expected int"),
    ("guard{finite=True}", "E-BUILD-002", "expected bool"),
    ("clip{max}", "E-BUILD-003", "expected option=value"),
    ("clip{max=1.0", "E-BUILD-003", "character"),
    ("expand,", "E-BUILD-003", "character"),
    ("expand expand", "E-BUILD-003", "character"),
    ("accumulate{steps=0}", "E-OPT-010", "at least 1"),
    ("clip{max=0.0}", "E-OPT-011", "above 0"),
    ("clip{max=inf}", "E-OPT-011", "above 0"),
    ("guard{policy=stp}", "E-OPT-012", "did you mean stop?"),
    ("decay{anchor=zeros}", "E-OPT-013", "did you mean zero?"),
]


@pytest.mark.parametrize(("text", "code", "said"), REFUSED)
def test_a_pipeline_is_refused_by_its_text(text: str, code: str, said: str) -> None:
    with pytest.raises((BuildError, OptError)) as caught:
        pipeline.parse(text)
    assert caught.value.code == code
    assert said in str(caught.value)


ORDERS = [
    ("accumulate{steps=1}", "E-BUILD-004", "differentiate"),
    ("differentiate,clip{max=1.0}", "E-BUILD-004", "accumulate"),
    ("differentiate,guard", "E-BUILD-004", "accumulate"),
    ("differentiate,optimizer{rule=adam}", "E-BUILD-004", "accumulate"),
    ("differentiate,accumulate,decay", "E-BUILD-004", "optimizer"),
    ("differentiate,differentiate", "E-BUILD-004", "differentiate"),
    ("differentiate,accumulate,optimizer{rule=adam},clip{max=1.0}", "E-BUILD-004", "clip comes"),
    ("expand", "E-BUILD-004", "differentiate"),
    ("differentiate,accumulate,optimizer{rule=adm}", "E-OPT-014", "did you mean adam?"),
]


@pytest.mark.parametrize(("text", "code", "said"), ORDERS)
def test_a_pass_names_what_it_needs(text: str, code: str, said: str) -> None:
    with pytest.raises((BuildError, OptError)) as caught:
        pipeline.run(module(FULL), text)
    assert caught.value.code == code
    assert said in str(caught.value)


def test_a_gradient_that_was_not_imported_is_named() -> None:
    start = module(FULL)
    del start.functions["objective.grad"]
    with pytest.raises(BuildError, match=r"E-BUILD-005.*@objective with respect to params"):
        pipeline.run(start, "differentiate")


def test_stages_are_numbered_and_recorded() -> None:
    seen: list[tuple[int, str, str, str]] = []

    def note(number: int, name: str, stage: Module) -> None:
        seen.append((number, name, stage.done, stage.left))

    pipeline.run(module(FULL), "differentiate,accumulate{steps=2}", on_stage=note)
    assert seen == [
        (0, "import", "", "differentiate,accumulate{steps=2}"),
        (1, "differentiate", "differentiate", "accumulate{steps=2}"),
        (2, "accumulate", "differentiate,accumulate{steps=2}", ""),
    ]


def test_the_input_is_untouched() -> None:
    start = module(FULL)
    text = print_module(start)
    pipeline.run(start, FULL.pipeline)
    assert print_module(start) == text


@pytest.mark.parametrize("guard", [True, False])
def test_resuming_from_any_stage_gives_the_same_module(guard: bool) -> None:
    config = dataclasses.replace(FULL, guard=guard)
    found = stages(config)
    last = found["expand"]
    for name, stage in found.items():
        numbers: list[int] = []
        again = parse(print_module(stage))
        made = pipeline.run(again, on_stage=lambda n, *_, to=numbers: to.append(n))
        assert difference(made, last) is None, name
        assert print_module(made) == print_module(last), name
        assert numbers[0] == list(found).index(name)


def broken(change: Callable[[Module], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `clip` leave a module with `change` in it."""
    original = Clip.__call__

    def call(self: Clip, given: Module) -> Module:
        made = original(self, given)
        change(made)
        return made

    monkeypatch.setattr(Clip, "__call__", call)


def test_a_pass_that_leaves_a_wrong_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def undefined(made: Module) -> None:
        report = made.programs["train_step"].body.ops[-1]
        assert isinstance(report, Report)
        report.entries["loss"] = Value(F32, "nowhere")

    broken(undefined, monkeypatch)
    with pytest.raises(BuildError, match=r"E-BUILD-006: .* after clip:[\s\S]*nowhere"):
        pipeline.run(module(FULL), FULL.pipeline)


def test_a_stage_that_does_not_read_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "parse_module", lambda text: module(Settings()))
    with pytest.raises(BuildError, match=r"E-BUILD-007: .* after import"):
        pipeline.run(module(FULL), FULL.pipeline, roundtrip=True)


def test_nothing_named_is_left_after_expand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Expand, "__call__", lambda self, given: given)
    with pytest.raises(BuildError, match=r"E-BUILD-006.* after expand"):
        pipeline.run(module(FULL), FULL.pipeline)


def test_a_name_that_is_taken_gets_a_prefix() -> None:
    config = Settings(rule=rules.Momentum)
    start = module(config)
    program = start.programs["train_step"]
    program.input("shift").value.name = "momentum"
    made = pipeline.run(start, config.pipeline, roundtrip=True).programs["train_step"]
    names = [i.value.name for i in made.inputs if i.role == "scalars"]
    assert names == ["momentum", "learning_rate", "opt.momentum"]
