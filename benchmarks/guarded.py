"""The character transformer with eight guards over its activations, and without them."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
from flax import nnx
from jobs import JOBS

import nitroc as nt

CharLM = type(JOBS["char_lm"].experiment())
Transformer = sys.modules[CharLM.__module__].Transformer


class Watched(nnx.Module):
    """A block of the transformer, four guards over what it computes."""

    def __init__(self, block, layer, guards):
        self.block, self.layer, self.guards = block, layer, guards

    def watch(self, name, x):
        if self.guards:
            far = nt.count_where(~(jnp.abs(x) < 1e4))
            nt.guard(f"activations/{name}", far, layer=self.layer)
        return x

    def __call__(self, x):
        block = self.block
        normed = self.watch("norm", block.before_attention(x))
        x = x + self.watch("attention", block.attention(normed))
        wide = self.watch("wide", block.widen(block.before_feed(x)))
        return x + self.watch("feed", block.narrow(jax.nn.gelu(wide)))


class GuardedLM(CharLM):
    """`CharLM` whose blocks are watched."""

    guards: nt.GraphConst[bool] = True
    "Whether the eight guards are there."

    def build_model(self, key):
        rngs = nnx.Rngs(params=key)
        module = Transformer(self.width, self.heads, self.layers, self.context, rngs)
        watched = [Watched(b, i, self.guards) for i, b in enumerate(module.blocks)]
        module.blocks = nnx.List(watched)
        return nt.nn.nnx(module)
