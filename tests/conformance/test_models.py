"""Models from libraries train as in a loop of the library's own with optax."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from flax import linen
from flax import nnx as flax_nnx
from networks import LIBRARIES, MOMENTUM, EquinoxNet, LinenNet, Network, NnxNet
from whole import INPUTS, Linear, bits, rows, trained

import nitroc as nt
from nitroc.frontend.keys import seed_key, training_key

SEED, RATE, EPOCHS, STEPS, MICRO = 7, 0.1, 2, 6, 2
SEED_WORDS = np.array([0, SEED], np.uint32)
OPTIMIZER = optax.sgd(RATE, momentum=0.9)


def batches() -> list[dict[str, np.ndarray]]:
    """Those of one epoch: three steps."""
    count = STEPS // EPOCHS * MICRO * 4
    split = rows(count)
    return [{k: v[i : i + 4] for k, v in split.items()} for i in range(0, count, 4)]


def forward_key(step: int, micro: int) -> Any:
    words = np.array([0, step], np.uint32)
    return training_key(SEED_WORDS, words, np.int32(micro), "forward")


def error(outputs: Any, y: Any) -> Any:
    return ((outputs[:, 0] - y) ** 2).mean()


def linen_loop(rate: float) -> tuple[Any, Any]:
    module = LinenNet(rate)
    variables = module.init(seed_key(SEED_WORDS), jnp.zeros((1, INPUTS)), train=False)
    params, stats = variables["params"], variables["batch_stats"]
    optimizer = OPTIMIZER.init(params)

    @jax.jit
    def gradient(params: Any, stats: Any, batch: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            outputs, updated = module.apply(
                {"params": params, "batch_stats": stats},
                batch["x"],
                train=True,
                rngs={"dropout": key},
                mutable=["batch_stats"],
            )
            return error(outputs, batch["y"]), updated["batch_stats"]

        return jax.grad(loss, has_aux=True)(params)

    source = iter(batches() * EPOCHS)
    for step in range(1, STEPS + 1):
        grads: list[Any] = []
        for micro in range(MICRO):
            grad, stats = gradient(params, stats, next(source), forward_key(step, micro))
            grads.append(grad)
        mean = jax.tree.map(lambda *parts: sum(parts) / MICRO, *grads)
        updates, optimizer = OPTIMIZER.update(mean, optimizer)
        params = optax.apply_updates(params, updates)
    return params, {"batch_stats": stats}


def nnx_loop(rate: float) -> tuple[Any, Any]:
    module = NnxNet(rate, flax_nnx.Rngs(seed_key(SEED_WORDS)))
    optimizer = flax_nnx.Optimizer(module, OPTIMIZER, wrt=flax_nnx.Param)

    @flax_nnx.jit
    def gradient(module: Any, batch: Any) -> Any:
        return flax_nnx.grad(lambda module: error(module(batch["x"]), batch["y"]))(module)

    source = iter(batches() * EPOCHS)
    module.train()
    for step in range(1, STEPS + 1):
        grads: list[Any] = []
        for micro in range(MICRO):
            key = jax.random.fold_in(forward_key(step, micro), zlib.crc32(b"dropout.rngs.key"))
            module.dropout.rngs.key[...] = key
            module.dropout.rngs.count[...] = jnp.uint32(0)
            grads.append(gradient(module, next(source)))
        optimizer.update(module, jax.tree.map(lambda *parts: sum(parts) / MICRO, *grads))
    params = flax_nnx.to_pure_dict(flax_nnx.state(module, flax_nnx.Param))
    return params, flax_nnx.to_pure_dict(flax_nnx.state(module, flax_nnx.BatchStat))


def equinox_loop(rate: float) -> tuple[Any, Any]:
    module, state = eqx.nn.make_with_state(EquinoxNet)(rate, seed_key(SEED_WORDS))
    optimizer = OPTIMIZER.init(eqx.filter(module, eqx.is_inexact_array))

    @eqx.filter_jit
    def gradient(module: Any, state: Any, batch: Any, key: Any) -> Any:
        def loss(module: Any) -> Any:
            outputs, after = jax.vmap(
                lambda x, key: module(x, state, key=key), out_axes=(0, None), axis_name="batch"
            )(batch["x"], jax.random.split(key, 4))
            return error(outputs, batch["y"]), after

        return eqx.filter_grad(loss, has_aux=True)(module)

    source = iter(batches() * EPOCHS)
    for step in range(1, STEPS + 1):
        grads: list[Any] = []
        for micro in range(MICRO):
            grad, state = gradient(module, state, next(source), forward_key(step, micro))
            grads.append(grad)
        mean = jax.tree.map(lambda *parts: sum(parts) / MICRO, *grads)
        updates, optimizer = OPTIMIZER.update(mean, optimizer)
        module = eqx.apply_updates(module, updates)
    first, _, last = module.layers
    norm = {"weight": module.norm.weight, "bias": module.norm.bias}
    last = {"weight": last.weight, "bias": last.bias}
    params = {"layers": {0: {"weight": first.weight}, 2: last}, "norm": norm}
    average = dict(enumerate(state.get(module.norm.ema_state_index)))
    seen = state.get(module.norm.ema_first_time_index)
    return params, {"norm": {"ema_state_index": average, "ema_first_time_index": seen}}


LOOPS: dict[str, Any] = {"linen": linen_loop, "nnx": nnx_loop, "equinox": equinox_loop}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_trains_as_in_its_librarys_own_loop_and_resumes_exactly(
    tmp_path: Path, library: str
) -> None:
    """Accumulated, with batch statistics, and dropout by the key of each step and micro-batch."""
    given = Network(library=library, rate=0.4, learning_rate=RATE)
    options: dict[str, Any] = {"data": {"train": batches()}, "accum": MICRO, "seed": SEED}
    whole = trained(given, tmp_path / "whole", max_epochs=EPOCHS, **options)
    assert whole.step == STEPS
    params, state = LOOPS[library](0.4)
    agree(whole.parameters, params)
    agree(whole.state, state)

    options["checkpointer"] = nt.TopKCheckpointer()
    trained(given, tmp_path / "part", max_epochs=1, **options)
    again = trained(given, tmp_path / "part", max_epochs=EPOCHS, resume="latest", **options)
    assert bits(again.parameters) == bits(whole.parameters)
    assert bits(again.state) == bits(whole.state)


def agree(found: Any, expected: Any) -> None:
    """Equal trees; |a - b| <= 1e-5 max|b| + 1e-7 per leaf."""
    pairs = zip(paths(found), paths(expected), strict=True)
    for (path, a), (other, b) in pairs:
        assert path == other
        largest = np.abs(np.asarray(b, np.float64)).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest + 1e-7, err_msg=path)


def paths(tree: Any) -> list[tuple[str, Any]]:
    return [(jtu.keystr(path), leaf) for path, leaf in jtu.tree_flatten_with_path(tree)[0]]


class LinenStatistics(linen.Module):
    """A running mean of the inputs, and one weight."""

    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        norm = linen.BatchNorm(
            use_running_average=not train, momentum=MOMENTUM, use_scale=False, use_bias=False
        )
        return linen.Dense(1)(norm(x))


class NnxStatistics(flax_nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.norm = flax_nnx.BatchNorm(
            1, momentum=MOMENTUM, use_scale=False, use_bias=False, rngs=rngs
        )
        self.last = flax_nnx.Linear(1, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.norm(x))


class EquinoxStatistics(eqx.Module):
    """Equinox keeps its average by another formula in each mode, so the mean is written out."""

    mean: eqx.nn.StateIndex[Any]
    last: eqx.nn.Linear
    inference: bool

    def __init__(self, key: Any) -> None:
        self.mean = eqx.nn.StateIndex(jnp.zeros(1))
        self.last = eqx.nn.Linear(1, 1, key=key)
        self.inference = False

    def __call__(self, x: Any, state: Any) -> Any:
        before = state.get(self.mean)
        if not self.inference:
            batch = jax.lax.pmean(x, "batch")
            state = state.set(self.mean, MOMENTUM * before + (1 - MOMENTUM) * batch)
        return self.last(x - before), state


class Statistics(Linear):
    """Micro-batches whose means are 10 and 4, then a validation batch that is short."""

    library: nt.GraphConst[str] = "linen"

    def build_data(self) -> Any:
        x = np.float32([[9], [11], [10], [10], [3], [5], [4], [4]])
        train = nt.data.arrays({"x": x, "y": x[:, 0]}, 4)
        return {"train": train, "val": nt.data.arrays({"x": x[:6], "y": x[:6, 0]}, 4)}

    def build_model(self, key: Any) -> Any:
        match self.library:
            case "linen":
                return nt.nn.linen(LinenStatistics(), key, jnp.zeros((1, 1)))
            case "nnx":
                return nt.nn.nnx(NnxStatistics(flax_nnx.Rngs(key)))
            case _:
                return nt.nn.equinox(EquinoxStatistics(key))

    def forward(  # type: ignore[override]
        self, model: Any, params: Any, state: Any, *, x: Any, train: bool
    ) -> Any:
        outputs, state = model.apply(params, state, x, train=train)
        return outputs[:, 0], state


MEANS: dict[str, Any] = {
    "linen": lambda state: state["batch_stats"]["BatchNorm_0"]["mean"],
    "nnx": lambda state: state["norm"]["mean"],
    "equinox": lambda state: state["mean"],
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_A13_batch_statistics_take_in_every_micro_batch_and_no_validation(
    tmp_path: Path, library: str
) -> None:
    nitro = trained(Statistics(library=library), tmp_path, accum=2)
    assert MEANS[library](nitro.state).tolist() == [4.5]
    before = bits(nitro.state)
    first = nitro.evaluate("val")
    assert bits(nitro.state) == before
    assert nitro.evaluate("val") == first
