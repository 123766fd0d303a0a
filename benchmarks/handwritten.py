"""The digits job as a person writes it with jax.jit and optax: the other side of the ratio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


class HandWritten:
    """Two-layer perceptron, RAdam with decoupled decay, donated state, loss read one step late."""

    def __init__(self, params: Any, smoothing: float, learning_rate: float, decay: float) -> None:
        mask = jax.tree.map(lambda leaf: leaf.ndim > 1, params)
        self.optimizer = optax.chain(
            optax.scale_by_radam(),
            optax.add_decayed_weights(decay, mask=mask),
            optax.scale_by_learning_rate(learning_rate),
        )
        self.params = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
        self.state = self.optimizer.init(self.params)
        self.smoothing = smoothing
        self.step = jax.jit(self._step, donate_argnums=(0, 1))

    def _loss(self, params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(image @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        logits = hidden @ params["logits"]["kernel"] + params["logits"]["bias"]
        target = jax.nn.one_hot(label, 10) * (1 - self.smoothing) + self.smoothing / 10
        return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1).mean()

    def _step(self, params: Any, state: Any, image: jax.Array, label: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(self._loss)(params, image, label)
        updates, state = self.optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    def epoch(self, batches: Iterator[dict[str, np.ndarray]]) -> list[float]:
        """One epoch's losses; each is read while the next step runs."""
        losses: list[float] = []
        waiting = None
        for batch in batches:
            self.params, self.state, loss = self.step(
                self.params, self.state, batch["image"], batch["label"]
            )
            if waiting is not None:
                losses.append(float(waiting))
            waiting = loss
        if waiting is not None:
            losses.append(float(waiting))
        return losses
