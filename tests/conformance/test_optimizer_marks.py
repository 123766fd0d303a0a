"""Marks inside an optimizer rule, from the experiment to the error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole import Linear, bits, handle, rows

import nitroc as nt
from nitro_runtime.errors import GuardError
from nitroc.errors import ContractError


@nt.rule()
def limited(g: Any, *, limit: float = 20.0) -> Any:
    """SGD that allows no element of a gradient beyond `limit`."""
    nt.guard("update/large", nt.count_where(abs(g) > limit), of="sgd")
    nt.metric("update/size", nt.namespace(g).max(abs(g)))
    return g


class Far(Linear):
    """Ten batches; the targets of batch 3 are far away, so both elements of `pair` count there."""

    far: nt.Device[float] = 100.0

    def build_data(self) -> Any:
        far = np.repeat(np.arange(10) == 2, 4).astype(np.float32)
        return {"train": nt.data.arrays({**rows(40), "far": far, "one": 0 * far + 1}, 4)}

    def build_model(self, key: Any) -> Any:
        zeros = {"pair": np.zeros(2, np.float32), "slope": np.zeros(3, np.float32)}
        return None, zeros, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any, one: Any) -> Any:
        return x @ params["slope"] + one * params["pair"].sum(), state

    def loss(self, outputs: Any, *, y: Any, far: Any) -> Any:  # type: ignore[override]
        return ((outputs - y - self.far * far) ** 2).mean()

    def optimizer(self, group: str) -> Any:
        return limited


def failed(nitro: nt.Nitro) -> GuardError:
    with pytest.raises(GuardError) as caught:
        nitro.train()
    return caught.value


def test_D04_a_rule_stops_at_its_step_and_names_the_parameter(tmp_path: Path) -> None:
    nitro = handle(Far(), tmp_path / "a", max_epochs=1, log_every=10)
    error = failed(nitro)
    assert (error.code, error.name, error.step) == ("E-GUARD-001", "update/large", 3)
    assert (error.count, error.stage) == (2, "train")
    assert dict(error.meta) == {"of": "sgd", "group": "default", "param": "pair"}
    message = str(error)
    assert "guard update/large group=default of=sgd param=pair counted 2 at step 3" in message
    line = limited.function.__code__.co_firstlineno + 3
    assert f"test_optimizer_marks.py:{line}:5" in message
    two = handle(Far(), tmp_path / "b", max_epochs=1, max_steps=2).train()
    assert bits(nitro.parameters) == bits(two.parameters)


def test_a_rule_that_does_not_count_trains_as_it_would_without_the_mark(tmp_path: Path) -> None:
    nitro = handle(Far(far=0.0), tmp_path / "a", max_epochs=1).train()

    class Plain(Far):
        def optimizer(self, group: str) -> Any:
            return nt.rules.SGD

    plain = handle(Plain(far=0.0), tmp_path / "b", max_epochs=1).train()
    assert bits(nitro.parameters) == bits(plain.parameters)
    lines = nitro.logger.lines("train")
    assert all(line["guard/update/large{group=default,of=sgd}"] == 0 for line in lines)
    assert all(line["update/size{group=default}"] > 0 for line in lines)


@pytest.mark.parametrize("layout", ["flat", "leaves"])
def test_every_layout_trains_alike(tmp_path: Path, layout: str) -> None:
    runs = [
        handle(Far(far=0.0), tmp_path / mode, max_epochs=1, layout=mode).train()
        for mode in ("auto", layout)
    ]
    assert bits(runs[0].parameters) == bits(runs[1].parameters)


def test_D05_the_finite_guard_comes_before_an_optimizers(tmp_path: Path) -> None:
    """The gradient of batch 3 overflows: the loss is infinite and every update counts."""
    error = failed(handle(Far(far=3e38), tmp_path, max_epochs=1))
    assert error.step == 3
    assert error.name != "update/large"
    assert [other.name for other in error.others][-1] == "update/large"


def test_without_the_finite_guard_the_rules_own_stops(tmp_path: Path) -> None:
    error = failed(handle(Far(), tmp_path, max_epochs=1, guard_finite=False))
    assert (error.name, error.step) == ("update/large", 3)


@nt.rule()
def sampled(g: Any) -> Any:
    """SGD with a bound on what is computed in sampled steps only."""
    nt.diagnostic("update/peak", nt.namespace(g).max(abs(g)), reduce="max", below=1e-3)
    return g


class Sampled(Far):
    def optimizer(self, group: str) -> Any:
        return sampled


def test_D09_a_diagnostic_of_a_rule_counts_when_it_is_selected(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_epochs": 1, "sample_every": 4}
    assert handle(Sampled(), tmp_path / "a", **options).train().step == 10
    error = failed(handle(Sampled(), tmp_path / "b", diagnostics=("update/*",), **options))
    assert (error.name, error.step) == ("update/peak", 4)
    assert error.meta["param"] == "pair"


class Clashing(Sampled):
    def loss(self, outputs: Any, *, y: Any, far: Any) -> Any:  # type: ignore[override]
        nt.diagnostic("update/peak", y.sum())
        return super().loss(outputs, y=y, far=far)


def test_one_name_in_a_hook_and_in_a_rule_is_one_series(tmp_path: Path) -> None:
    """A hook's mean and a rule's max can't be one: both lines are named."""
    with pytest.raises(ContractError) as caught:
        handle(Clashing(), tmp_path, max_epochs=1).train()
    assert caught.value.code == "E-CONTRACT-024"
    in_rule = sampled.function.__code__.co_firstlineno + 3
    in_hook = Clashing.loss.__code__.co_firstlineno + 1
    for line in (in_rule, in_hook):
        assert f"test_optimizer_marks.py:{line}" in str(caught.value)


def test_the_report_says_what_the_marks_of_a_rule_cost(tmp_path: Path) -> None:
    text = handle(Far(), tmp_path).binding_report()
    assert "applied leaf by leaf" in text
    assert "evaluated twice" in text
