"""One network in three libraries: dense, batch statistics, dropout, dense; and plain functions."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen
from flax import nnx as flax_nnx
from whole import INPUTS, Linear

import nitroc as nt

WIDTH, MOMENTUM = 5, 0.5
START = jax.nn.initializers.uniform(1.0)
LIBRARIES = ("linen", "nnx", "equinox")


class LinenNet(linen.Module):
    rate: float

    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = linen.Dense(WIDTH, use_bias=False, kernel_init=START)(x)
        x = linen.BatchNorm(use_running_average=not train, momentum=MOMENTUM)(x)
        x = linen.Dropout(self.rate, deterministic=not train)(linen.tanh(x))
        return linen.Dense(1, kernel_init=START)(x)


class NnxNet(flax_nnx.Module):
    def __init__(self, rate: float, rngs: Any) -> None:
        self.first = flax_nnx.Linear(INPUTS, WIDTH, use_bias=False, kernel_init=START, rngs=rngs)
        self.norm = flax_nnx.BatchNorm(WIDTH, momentum=MOMENTUM, rngs=rngs)
        self.dropout = flax_nnx.Dropout(rate, rngs=rngs)
        self.last = flax_nnx.Linear(WIDTH, 1, kernel_init=START, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.dropout(jnp.tanh(self.norm(self.first(x)))))


class EquinoxNet(eqx.Module):
    layers: list[Any]
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout

    def __init__(self, rate: float, key: Any) -> None:
        first, last = jax.random.split(key)
        self.layers = [
            eqx.nn.Linear(INPUTS, WIDTH, use_bias=False, key=first),
            jnp.tanh,
            eqx.nn.Linear(WIDTH, 1, key=last),
        ]
        self.norm = eqx.nn.BatchNorm(WIDTH, "batch", momentum=MOMENTUM, mode="ema")
        self.dropout = eqx.nn.Dropout(rate)

    def __call__(self, x: Any, state: Any, *, key: Any = None) -> Any:
        x, state = self.norm(self.layers[0](x), state)
        return self.layers[2](self.dropout(self.layers[1](x), key=key)), state


def made(library: str, rate: float, key: Any) -> Any:
    """`(model, params, state)` of the network in this library."""
    match library:
        case "linen":
            return nt.nn.linen(LinenNet(rate), key, jnp.zeros((1, INPUTS)))
        case "nnx":
            return nt.nn.nnx(NnxNet(rate, flax_nnx.Rngs(key)))
        case _:
            return nt.nn.equinox(EquinoxNet(rate, key))


class Network(Linear):
    """Least squares of the network by momentum."""

    library: nt.GraphConst[str] = "linen"
    rate: nt.GraphConst[float] = 0.0

    def build_model(self, key: Any) -> Any:
        return made(self.library, self.rate, key)

    def forward(  # type: ignore[override]
        self, model: Any, params: Any, state: Any, *, x: Any, train: bool, key: Any
    ) -> Any:
        outputs, state = model.apply(params, state, x, train=train, key=key)
        return outputs[:, 0], state

    def optimizer(self, group: str) -> Any:
        return nt.rules.Momentum
