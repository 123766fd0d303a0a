"""The jobs as a person writes them with jax.jit and optax: the other side of the ratios.

Nothing here imports nitroc. Initial values come from `jax.random.key(42)`, which are the words that
nitroc makes of its seed 42, so both sides start from the same bits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen

SEED = 42

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Written:
    """A job: `init(key) -> (params, state)`, `loss(params, state, step, batch) -> (loss, state)`.

    `step` counts from 1; only keys depend on it. `rule`: the update before decay and rate. `clip`:
    the largest global norm, 0 for none.
    """

    init: Callable[[jax.Array], tuple[Any, Any]]
    loss: Callable[[Any, Any, jax.Array, Any], tuple[jax.Array, Any]]
    learning_rate: float
    weight_decay: float
    clip: float = 0.0
    rule: Callable[[], optax.GradientTransformation] = optax.scale_by_radam


class HandWritten:
    """A rule, decoupled decay of all but vectors, donated state, the loss read one step late."""

    def __init__(self, job: Written) -> None:
        self.params, self.state = job.init(jax.random.key(SEED))
        mask = jax.tree.map(lambda leaf: leaf.ndim > 1, self.params)
        self.optimizer = optax.chain(
            job.rule(),
            optax.add_decayed_weights(job.weight_decay, mask=mask),
            optax.scale_by_learning_rate(job.learning_rate),
        )
        self.clip = optax.clip_by_global_norm(job.clip) if job.clip else optax.identity()
        self.loss = job.loss
        self.slots = self.optimizer.init(self.params)
        self.step = jax.jit(self._step, donate_argnums=(0, 1, 2))

    def _step(self, params: Any, state: Any, slots: Any, batch: Batch) -> Any:
        (loss, state), grads = jax.value_and_grad(self.loss, has_aux=True)(
            params, state, slots[0].count + 1, batch
        )
        grads, _ = self.clip.update(grads, self.clip.init(params))
        updates, slots = self.optimizer.update(grads, slots, params)
        return optax.apply_updates(params, updates), state, slots, loss

    def epoch(self, batches: Iterable[Batch]) -> list[float]:
        """One epoch's losses; each is read while the next step runs."""
        losses: list[float] = []
        waiting = None
        for batch in batches:
            self.params, self.state, self.slots, loss = self.step(
                self.params, self.state, self.slots, batch
            )
            if waiting is not None:
                losses.append(float(waiting))
            waiting = loss
        if waiting is not None:
            losses.append(float(waiting))
        return losses


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """The mean over all but the last axis of `logits`."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], axis=-1).mean()


def dense(key: jax.Array, inputs: int, outputs: int, gain: float) -> dict[str, jax.Array]:
    kernel = jax.random.normal(key, (inputs, outputs)) * (gain / inputs) ** 0.5
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


def affine(params: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ params["kernel"] + params["bias"]


# ------------------------------------------------------------------------------------- digits


def digits() -> Written:
    """Two-layer perceptron with label smoothing."""

    def init(key: jax.Array) -> tuple[Any, Any]:
        first, second = jax.random.split(key)
        return {"hidden": dense(first, 64, 128, 2), "logits": dense(second, 128, 10, 2)}, {}

    def loss(params: Any, state: Any, step: jax.Array, batch: Any) -> tuple[jax.Array, Any]:
        logits = affine(params["logits"], jax.nn.relu(affine(params["hidden"], batch["image"])))
        target = jax.nn.one_hot(batch["label"], 10) * 0.95 + 0.05 / 10
        return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1).mean(), state

    return Written(init, loss, learning_rate=2e-3, weight_decay=1e-3)


# ---------------------------------------------------------------------------------------- cnn


class Net(linen.Module):
    """Two convolutions with batch statistics, dropout, one dense layer."""

    @linen.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        x = image.reshape(-1, 8, 8, 1)
        for channels in (16, 32):
            x = linen.Conv(channels, (3, 3), use_bias=False)(x)
            x = linen.BatchNorm(use_running_average=False, momentum=0.9)(x)
            x = linen.max_pool(linen.relu(x), (2, 2), (2, 2))
        x = linen.Dropout(0.3, deterministic=False)(x.reshape(x.shape[0], -1))
        return linen.Dense(10)(x)


def cnn() -> Written:
    """`Net` on digits."""
    net = Net()

    def init(key: jax.Array) -> tuple[Any, Any]:
        made = net.init({"params": key, "dropout": key}, jnp.zeros((1, 64)))
        return made["params"], made["batch_stats"]

    def loss(params: Any, state: Any, step: jax.Array, batch: Any) -> tuple[jax.Array, Any]:
        logits, changed = net.apply(
            {"params": params, "batch_stats": state},
            batch["image"],
            rngs={"dropout": key_of(step)},
            mutable=["batch_stats"],
        )
        return cross_entropy(logits, batch["label"]), changed["batch_stats"]

    return Written(init, loss, learning_rate=3e-3, weight_decay=1e-3)


def key_of(step: jax.Array) -> jax.Array:
    """The key that nitroc hands `forward` at `step`, so that both sides drop the same units."""
    key = jax.random.key(SEED)
    for word in (0, 0, step, 0, zlib.crc32(b"forward")):
        key = jax.random.fold_in(key, word)
    return key


# ---------------------------------------------------------------------------------- leaves100


def leaves100(layers: int = 50) -> Written:
    """A residual perceptron of many layers."""

    def init(key: jax.Array) -> tuple[Any, Any]:
        keys = jax.random.split(key, layers)
        outputs = [64] * (layers - 1) + [10]
        return {f"layer_{i:02d}": dense(keys[i], 64, n, 1) for i, n in enumerate(outputs)}, {}

    def loss(params: Any, state: Any, step: jax.Array, batch: Any) -> tuple[jax.Array, Any]:
        x = batch["x"]
        *hidden, last = [params[name] for name in sorted(params)]
        for layer in hidden:
            x = x + 0.1 * jax.nn.relu(affine(layer, x))
        return cross_entropy(affine(last, x), batch["label"]), state

    return Written(init, loss, learning_rate=1e-3, weight_decay=1e-3)
