"""The character transformer as a person writes it with Flax nnx, jax.jit and optax.

python benchmarks/handwritten_lm.py --steps 1
"""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from handwritten import HandWritten, Written, cross_entropy

WIDTH, HEADS, CONTEXT = 128, 4, 64
ROWS, SIZE, BYTES = 32, 500_000, 256


class Attention(nnx.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.heads = heads
        self.mixed = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        rows, length, width = x.shape
        parts = self.mixed(x).reshape(rows, length, 3, self.heads, width // self.heads)
        query, key, value = jnp.moveaxis(parts, 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // self.heads) ** -0.5
        past = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf))
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape))


class Block(nnx.Module):
    """Attention, then a perceptron, each after a norm and added."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.before_attention = nnx.LayerNorm(width, rngs=rngs)
        self.attention = Attention(width, heads, rngs)
        self.before_feed = nnx.LayerNorm(width, rngs=rngs)
        self.widen = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.before_attention(x))
        return x + self.narrow(jax.nn.gelu(self.widen(self.before_feed(x))))


class Transformer(nnx.Module):
    """Bytes i32[rows, length] to logits of the next one."""

    def __init__(self, width: int, heads: int, context: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(BYTES, width, rngs=rngs)
        self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (context, width)))
        self.blocks = nnx.List([Block(width, heads, rngs) for _ in range(2)])
        self.last_norm = nnx.LayerNorm(width, rngs=rngs)
        self.logits = nnx.Linear(width, BYTES, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        x = self.embed(text) + self.position[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.logits(self.last_norm(x))


def char_lm(width: int = WIDTH, heads: int = HEADS, context: int = CONTEXT) -> Written:
    """`Transformer` on Python's own sources."""
    graph: Any = None

    def init(key: jax.Array) -> tuple[Any, Any]:
        nonlocal graph
        made = Transformer(width, heads, context, nnx.Rngs(params=key))
        graph, params, rest = nnx.split(made, nnx.Param, ...)
        return params, rest

    def loss(params: Any, state: Any, step: jax.Array, batch: Any) -> tuple[jax.Array, Any]:
        logits = nnx.merge(graph, params, state)(batch["text"])
        return cross_entropy(logits, batch["target"]), state

    return Written(init, loss, 2e-3, 1e-2, clip=1.0, rule=optax.scale_by_adam)


def batches(seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Shuffled windows of text and the byte after each of their places."""
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= SIZE:
            break
    codes = np.frombuffer(text[:SIZE], np.uint8).astype(np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)[::CONTEXT]
    order = np.random.default_rng(seed).permutation(len(windows) * 9 // 10)
    for start in range(0, len(order) - ROWS + 1, ROWS):
        rows = windows[order[start : start + ROWS]]
        yield {"text": rows[:, :-1], "target": rows[:, 1:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    trainer = HandWritten(char_lm())
    given = (batch for batch, _ in zip(batches(0), range(steps), strict=False))
    for step, loss in enumerate(trainer.epoch(given), 1):
        print(f"step {step} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
