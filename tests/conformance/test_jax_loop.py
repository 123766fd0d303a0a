"""Generated experiments against a training loop written by hand: jax gradients, numpy updates."""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from journal import Journal

import nitroc as nt

STEPS, ROWS, INPUTS, OUTPUTS, WIDTH = 10, 4, 3, 2, 5
SEED, RATE, EPS = 7, 0.05, 1e-3
Tree = Any


@dataclass(frozen=True)
class Case:
    """What is generated. `weighted`: the loss is `(sum, weight)`, else a mean of its rows."""

    layers: int
    accum: int
    clip: float
    decay: float
    rule: str
    weighted: bool
    dropout: float
    stateful: bool
    data: int


cases = st.builds(
    Case,
    layers=st.integers(1, 3),
    accum=st.integers(1, 4),
    clip=st.sampled_from([0.0, 0.05, 100.0]),
    decay=st.sampled_from([0.0, 0.3]),
    rule=st.sampled_from(["SGD", "Momentum", "Adam", "RAdam"]),
    weighted=st.booleans(),
    dropout=st.sampled_from([0.0, 0.25]),
    stateful=st.booleans(),
    data=st.integers(0, 2**16),
)


class Plain(nt.Experiment):
    """Dense layers with tanh between; with `stateful`, inputs centred by their running mean."""

    layers: nt.GraphConst[int] = 1
    weighted: nt.GraphConst[bool] = False
    stateful: nt.GraphConst[bool] = False
    rule: str = "SGD"
    accum: int = 1
    gradient_clip_norm: float = 0.0
    learning_rate: float = RATE
    weight_decay: float = 0.0
    eps: float = EPS
    data: int = 0
    run_dir: str = ""

    def build_data(self) -> Any:
        return {"train": batches(self.data, STEPS * self.accum)}

    def build_model(self, key: Any) -> Any:
        return None, first_params(self.layers, self.data), first_state(self.stateful)

    def forward(self, model: Any, params: Tree, state: Tree, *, x: Any) -> Any:
        return network(params, state, x)

    def loss(self, outputs: Any, *, y: Any, weight: Any) -> Any:
        return criterion(outputs, y, weight, self.weighted)

    def optimizer(self, group: str) -> Any:
        return getattr(nt.rules, self.rule)


class Dropping(Plain):
    """The same with dropout of the inputs, in training only."""

    dropout: nt.GraphConst[float] = 0.25

    def forward(  # type: ignore[override]
        self, model: Any, params: Tree, state: Tree, *, x: Any, key: Any, train: bool
    ) -> Any:
        return network(params, state, dropped(x, key, self.dropout) if train else x)


def batches(start: int, count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(start)
    return [
        {
            "x": rng.normal(size=(ROWS, INPUTS)).astype(np.float32),
            "y": rng.normal(size=(ROWS, OUTPUTS)).astype(np.float32),
            "weight": rng.uniform(0, 2, ROWS).astype(np.float32),
        }
        for _ in range(count)
    ]


def first_params(layers: int, start: int) -> Tree:
    sizes = [INPUTS, *[WIDTH] * (layers - 1), OUTPUTS]
    rng = np.random.default_rng([start, layers])
    return [
        {"w": rng.normal(0, 0.5, (a, b)).astype(np.float32), "b": np.zeros(b, np.float32)}
        for a, b in itertools.pairwise(sizes)
    ]


def first_state(stateful: bool) -> Tree:
    return {"mean": np.zeros(INPUTS, np.float32), "seen": np.int32(0)} if stateful else {}


def network(params: Tree, state: Tree, x: Any) -> Any:
    if state:
        before = state["mean"]
        state = {"mean": 0.8 * before + 0.2 * x.mean(0), "seen": state["seen"] + 1}
        x = x - before
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"], state


def dropped(x: Any, key: Any, rate: float) -> Any:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def criterion(outputs: Any, y: Any, weight: Any, weighted: bool) -> Any:
    rows = ((outputs - y) ** 2).sum(-1)
    return ((rows * weight).sum(), weight.sum()) if weighted else rows.mean()


# ------------------------------------------------------------------------------- by hand


@functools.cache
def gradient(layers: int, stateful: bool, weighted: bool, dropout: float) -> Any:
    """((loss sum, (weight, state)), gradient) of a micro-batch, compiled: tracing an experiment
    clears what `jax.jit` keeps."""

    def loss(params: Tree, state: Tree, batch: Any, step: Any, micro: Any) -> Any:
        x = batch["x"]
        if dropout:
            x = dropped(x, forward_key(step, micro), dropout)
        outputs, state = network(params, state, x)
        found = criterion(outputs, batch["y"], batch["weight"], weighted)
        total, weight = found if weighted else (found, jnp.float32(1))
        return total, (weight, state)

    shaped = first_params(layers, 0), first_state(stateful), batches(0, 1)[0]
    lowered = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(
        *shaped, np.uint32(0), np.int32(0)
    )
    return lowered.compile()


def forward_key(step: Any, micro: Any) -> Any:
    """The seed's key folded with: training, the step's high and low word, micro-batch, hook."""
    key = jax.random.key(SEED, impl="threefry2x32")
    for word in (0, 0, step, micro, zlib.crc32(b"forward")):
        key = jax.random.fold_in(key, jnp.uint32(word))
    return key


def update(rule: str, g: Any, slots: dict[str, Any], t: int) -> Any:
    """The textbook forms in f64; `slots` are changed in place."""
    b1, b2 = 0.9, 0.999
    if rule == "SGD":
        return g
    if rule == "Momentum":
        slots["trace"] = g + 0.9 * slots.get("trace", 0)
        return slots["trace"]
    slots["mu"] = b1 * slots.get("mu", 0) + (1 - b1) * g
    slots["nu"] = b2 * slots.get("nu", 0) + (1 - b2) * g * g
    mu = slots["mu"] / (1 - b1**t)
    adam = mu / (np.sqrt(slots["nu"] / (1 - b2**t)) + EPS)
    if rule == "Adam":
        return adam
    limit = 2 / (1 - b2) - 1
    rho = limit - 2 * t * b2**t / (1 - b2**t)
    if rho < 5:
        return mu
    rectified = (rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho)
    return math.sqrt(rectified) * adam


def by_hand(case: Case) -> tuple[Tree, Tree, list[float]]:
    """Parameters, state and the loss of every step."""
    state = first_state(case.stateful)
    leaves, treedef = jax.tree.flatten(first_params(case.layers, case.data))
    run = gradient(case.layers, case.stateful, case.weighted, case.dropout)
    slots: list[dict[str, Any]] = [{} for _ in leaves]
    source = iter(batches(case.data, STEPS * case.accum))
    losses: list[float] = []
    for step in range(1, STEPS + 1):
        total, weight, grads = 0.0, 0.0, [np.zeros(leaf.shape) for leaf in leaves]
        for micro in range(case.accum):
            (part, (w, state)), g = run(
                treedef.unflatten(leaves), state, next(source), np.uint32(step), np.int32(micro)
            )
            total, weight = total + float(part), weight + float(w)
            grads = [a + np.float64(b) for a, b in zip(grads, jax.tree.leaves(g), strict=True)]
        losses.append(total / weight)
        grads = [g / weight for g in grads]
        norm = math.sqrt(sum(float((g * g).sum()) for g in grads))
        if case.clip and norm > case.clip:
            grads = [g * (case.clip / norm) for g in grads]
        for i, g in enumerate(grads):
            decay = case.decay * leaves[i] if leaves[i].ndim > 1 else 0.0
            u = update(case.rule, g, slots[i], step) + decay
            leaves[i] = (leaves[i] - RATE * u).astype(np.float32)
    return treedef.unflatten(leaves), state, losses


def by_nitroc(case: Case, run_dir: Any) -> tuple[Tree, Tree, list[float]]:
    journal = Journal()
    kind = Dropping if case.dropout else Plain
    experiment = kind(
        layers=case.layers,
        weighted=case.weighted,
        stateful=case.stateful,
        rule=case.rule,
        accum=case.accum,
        gradient_clip_norm=case.clip,
        weight_decay=case.decay,
        data=case.data,
        run_dir=str(run_dir),
    )
    made = nt.train(experiment, seed=SEED, logger=journal, checkpointer=None, quiet=True)
    return made.parameters, made.state, [line["loss"] for line in journal.lines("train")]


def agree(found: Tree, expected: Tree) -> None:
    """|a - b| <= 1e-5 max|b| + 1e-7 per leaf."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        largest = np.abs(np.asarray(b, np.float64)).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest + 1e-7)


@pytest.mark.parametrize("part", range(4))
def test_an_experiment_trains_as_a_loop_written_by_hand(tmp_path: Any, part: int) -> None:
    """52 experiments, in parts that run side by side."""

    @seed(part)
    @settings(
        max_examples=13,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def agrees(case: Case) -> None:
        params, state, losses = by_nitroc(case, tmp_path)
        expected_params, expected_state, expected_losses = by_hand(case)
        assert jax.tree.structure(params) == jax.tree.structure(expected_params)
        agree(params, expected_params)
        agree(state, expected_state)
        assert len(losses) == STEPS
        agree(np.array(losses), np.array(expected_losses))

    agrees()
