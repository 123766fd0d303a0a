"""Step arithmetic through the whole stack: what lines say and where parameters go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from whole import Linear, bits, handle, losses, rows, trained

import nitroc as nt
from nitro_runtime.errors import DataError, GuardError, NitroError


def cut(count: int, width: int = 1) -> Any:
    return nt.data.arrays(rows(count * width), width)


@pytest.mark.parametrize(
    ("batches", "accum", "legal"),
    [(3, 2, "2 and 4"), (45, 2, "44 and 46"), (10, 4, "8 and 12")],
)
def test_A01_a_handle_names_the_nearest_legal_counts(
    tmp_path: Path, batches: int, accum: int, legal: str
) -> None:
    with pytest.raises(NitroError, match="accum") as caught:
        handle(Linear(), tmp_path, data={"train": cut(batches)}, accum=accum)
    assert legal in str(caught.value)


class Constant(Linear):
    connected: nt.GraphConst[bool] = True

    def loss(self, outputs: Any) -> Any:  # type: ignore[override]
        return 4.0 + 0 * outputs.sum() if self.connected else jnp.float32(4)


@pytest.mark.parametrize("accum", [1, 2, 4])
@pytest.mark.parametrize("connected", [True, False])
def test_A02_every_line_of_a_constant_loss_says_it(
    tmp_path: Path, accum: int, connected: bool
) -> None:
    nitro = trained(Constant(connected=connected), tmp_path, accum=accum, max_epochs=2)
    lines = nitro.logger.lines("train")
    assert [line["step"] for line in lines] == list(range(1, 8 // accum + 1))
    assert {line["loss"] for line in lines} == {4.0}
    assert [row["loss"] for row in nitro.history] == [4.0, 4.0]


class Slope(Linear):
    """The gradient of `w` is `slope`, that of `b` 0; rate 1."""

    slope: nt.Device[Any]
    learning_rate: float = 1.0

    def loss(self, outputs: Any) -> Any:  # type: ignore[override]
        return outputs.mean()

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        value = (params["w"] * self.slope).sum() + 0 * params["b"]
        return jnp.zeros(x.shape[0]) + value, state


def moved(tmp_path: Path, slope: Any, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """What one step took from `w`, and its line."""
    nitro = handle(
        Slope(slope=np.float32(slope)), tmp_path, max_steps=1, data={"train": cut(1, 4)}, **options
    )
    before = nitro.parameters["w"]
    nitro.train()
    return before - nitro.parameters["w"], nitro.logger.lines("train")[0]


def test_A03_a_larger_gradient_is_clipped_to_the_threshold(tmp_path: Path) -> None:
    step, line = moved(tmp_path, [3, 4, 12], gradient_clip_norm=0.5)
    assert abs(np.linalg.norm(step.astype(np.float64)) - 0.5) < 1e-6
    np.testing.assert_allclose(line["grad_norm"], 13, rtol=1e-6)


def test_A03_at_the_threshold_and_at_zero_nothing_changes(tmp_path: Path) -> None:
    exactly, line = moved(tmp_path / "at", [3, 4, 0], gradient_clip_norm=5.0)
    assert exactly.tolist() == [3, 4, 0]
    assert line["grad_norm"] == 5
    zero, line = moved(tmp_path / "zero", [0, 0, 0], gradient_clip_norm=1.0)
    assert zero.tolist() == [0, 0, 0]
    assert line["grad_norm"] == 0


def test_A03_without_a_threshold_there_is_no_norm(tmp_path: Path) -> None:
    step, line = moved(tmp_path, [3, 4, 12])
    assert step.tolist() == [3, 4, 12]
    assert "grad_norm" not in line


class Decayed(Linear):
    learning_rate: float = 0.1
    weight_decay: float = 0.5

    def build_model(self, key: Any) -> Any:
        ones = {"W": np.ones((2, 2), np.float32), "V": np.ones((2, 2), np.float32)}
        return None, {**ones, "bias": np.ones(2, np.float32), "scale": np.ones(2, np.float32)}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        h = x[:, :2] @ params["W"] @ params["V"] * params["scale"] + params["bias"]
        return h.sum(-1), state

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return ((outputs - y) ** 2).mean() * 0


class Excluding(Decayed):
    def no_decay(self, path: Any, leaf: Any) -> bool:
        return nt.default_no_decay(path, leaf) or path[-1] == "V"


@pytest.mark.parametrize(("kind", "v"), [(Decayed, 0.95), (Excluding, 1.0)])
@pytest.mark.parametrize("layout", ["auto", "flat", "leaves"])
def test_A05_decay_spares_vectors_and_what_is_added(
    tmp_path: Path, kind: Any, v: float, layout: str
) -> None:
    made = trained(kind(), tmp_path, max_steps=1, layout=layout).parameters
    np.testing.assert_allclose(made["W"], np.full((2, 2), 0.95), rtol=1e-6)
    np.testing.assert_allclose(made["V"], np.full((2, 2), v), rtol=1e-6)
    assert made["bias"].tolist() == [1, 1]
    assert made["scale"].tolist() == [1, 1]


class Ruled(Slope):
    rule: str = "SGD"

    def optimizer(self, group: str) -> Any:
        return getattr(nt.rules, self.rule)


@pytest.mark.parametrize("rule", ["SGD", "Momentum", "Adam", "RAdam"])
def test_A10_the_first_step_of_a_rule(tmp_path: Path, rule: str) -> None:
    """t is 1: Adam moves by the sign; the others, RAdam below its threshold too, by the gradient"""
    g = np.float32([0.3, -2, 40])
    made = Ruled(rule=rule, slope=g, learning_rate=0.01)
    nitro = handle(made, tmp_path, max_steps=1)
    before = nitro.parameters["w"]
    step = (before - nitro.train().parameters["w"]) / 0.01
    expected = np.sign(g) if rule == "Adam" else g
    np.testing.assert_allclose(step, expected, rtol=0, atol=1e-6 / 0.01 * 40)


class Undefined(Linear):
    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        zero = params["w"] * 0
        return jnp.where(zero > 0, jnp.sqrt(zero), 0).sum() + x[:, 0] + params["b"], state


def test_A14_a_gradient_without_a_value_stops_the_first_step(tmp_path: Path) -> None:
    nitro = handle(Undefined(), tmp_path, max_epochs=1)
    before = bits(nitro.parameters)
    with pytest.raises(GuardError) as caught:
        nitro.train()
    assert caught.value.code == "E-GUARD-002"
    assert "parameter w" in str(caught.value)
    assert "step 1" in str(caught.value)
    assert bits(nitro.parameters) == before
    assert nitro.stop_reason == "diverged"
    assert nitro.logger.status == "diverged"


class Squares(Linear):
    def build_data(self) -> Any:
        k = np.repeat(np.arange(1, 7, dtype=np.float32), 4)
        return {"train": nt.data.arrays({**rows(24), "k": k}, 4)}

    def loss(self, outputs: Any, *, k: Any) -> Any:  # type: ignore[override]
        return (k * k).mean() + 0 * outputs.sum()


@pytest.mark.parametrize("accum", [1, 2, 3])
def test_A16_a_line_is_the_mean_of_its_micro_batches(tmp_path: Path, accum: int) -> None:
    nitro = trained(Squares(), tmp_path, accum=accum)
    squares = np.arange(1, 7, dtype=np.float64) ** 2
    np.testing.assert_allclose(losses(nitro), squares.reshape(-1, accum).mean(1), rtol=1e-6)
    np.testing.assert_allclose(nitro.history[-1]["loss"], 91 / 6, rtol=1e-6)


class Weighted(Linear):
    """Rows of weight 0 to 3, most micro-batches unlike the others."""

    width: int = 8

    def build_data(self) -> Any:
        m = np.random.default_rng(3).integers(0, 4, 32).astype(np.float32)
        return {"train": nt.data.arrays({**rows(32), "m": m}, self.width)}

    def loss(self, outputs: Any, *, y: Any, m: Any) -> Any:  # type: ignore[override]
        return (m * (outputs - y) ** 2).sum(), m.sum()


@pytest.mark.parametrize("accum", [2, 4])
def test_A17_micro_batches_of_unequal_weight_are_the_merged_batch(
    tmp_path: Path, accum: int
) -> None:
    merged = trained(Weighted(), tmp_path / "merged", max_epochs=3)
    parts = trained(Weighted(width=8 // accum), tmp_path / "parts", accum=accum, max_epochs=3)
    np.testing.assert_allclose(losses(parts), losses(merged), rtol=1e-6)
    for name, value in merged.parameters.items():
        np.testing.assert_allclose(parts.parameters[name], value, rtol=1e-6, atol=1e-7)


class Weightless(Weighted):
    def loss(self, outputs: Any, *, y: Any, m: Any) -> Any:
        return (0 * m * (outputs - y) ** 2).sum(), 0 * m.sum()


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("accum", [1, 2])
def test_A17_a_total_weight_of_0_is_named(tmp_path: Path, guard: bool, accum: int) -> None:
    nitro = handle(Weightless(), tmp_path, guard_finite=guard, accum=accum)
    with pytest.raises(DataError) as caught:
        nitro.train()
    assert caught.value.code == "E-DATA-060"
    assert "step 1" in str(caught.value)


class WithLeaf(Linear):
    leaf: Any = None

    def build_model(self, key: Any) -> Any:
        return None, {"w": np.ones(3, np.float32), "b": np.float32(0), "n": self.leaf}, {}


@pytest.mark.parametrize("leaf", [np.int32(3), np.array([True]), np.complex64(1j)])
def test_A20_an_untrainable_leaf_of_params_points_at_state(tmp_path: Path, leaf: Any) -> None:
    with pytest.raises(NitroError, match="state") as caught:
        handle(WithLeaf(leaf=leaf), tmp_path)
    assert "n" in str(caught.value)


class NoLeaf(Linear):
    def build_model(self, key: Any) -> Any:
        return None, {}, {"w": np.ones(3, np.float32)}


def test_A20_no_trainable_leaf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NitroError, match="trainable"):
        handle(NoLeaf(), tmp_path)
