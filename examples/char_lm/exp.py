"""A small language model over bytes: the standard library's own sources, a pre-norm transformer.

nitroc build examples/char_lm/exp.py -o bundle/
nitroc run bundle/
"""

import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import nitroc as nt

BYTES = 256


class Attention(nnx.Module):
    """Causal self-attention. Its scores must stay finite; how sharp it is can be watched."""

    def __init__(self, width, heads, layer, rngs):
        self.heads, self.layer = heads, layer
        self.mixed = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(self, x):
        rows, length, width = x.shape
        parts = self.mixed(x).reshape(rows, length, 3, self.heads, width // self.heads)
        query, key, value = jnp.moveaxis(parts, 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // self.heads) ** -0.5
        scores = nt.assert_finite("attention/scores", scores, layer=self.layer)
        past = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf))
        entropy = -jnp.sum(jnp.where(past, weights * jnp.log(weights + 1e-9), 0), -1)
        nt.diagnostic("attention/entropy", entropy.mean(), layer=self.layer)
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape))


class Block(nnx.Module):
    def __init__(self, width, heads, layer, rngs):
        self.before_attention = nnx.LayerNorm(width, rngs=rngs)
        self.attention = Attention(width, heads, layer, rngs)
        self.before_feed = nnx.LayerNorm(width, rngs=rngs)
        self.widen = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.narrow(jax.nn.gelu(self.widen(self.before_feed(x))))


class Transformer(nnx.Module):
    """Bytes i32[rows, length] to logits of the next one, f32[rows, length, 256]."""

    def __init__(self, width, heads, layers, context, rngs):
        self.embed = nnx.Embed(BYTES, width, rngs=rngs)
        self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (context, width)))
        self.blocks = nnx.List([Block(width, heads, i, rngs) for i in range(layers)])
        self.last_norm = nnx.LayerNorm(width, rngs=rngs)
        self.logits = nnx.Linear(width, BYTES, rngs=rngs)

    def __call__(self, text):
        x = self.embed(text) + self.position[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.logits(self.last_norm(x))


class CharLM(nt.Experiment):
    """The next byte of Python source, from the 64 before it."""

    width: nt.GraphConst[int] = 128
    heads: nt.GraphConst[int] = 4
    layers: nt.GraphConst[int] = 2
    context: nt.GraphConst[int] = 64
    "Bytes the model sees at once."
    size: int = 500_000
    "Bytes of source read; the last tenth is val."
    batch_size: int = 32
    max_epochs: int = 2
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    gradient_clip_norm: float = 1.0

    @classmethod
    def presets(cls):
        small = {"width": 32, "heads": 2, "context": 16, "size": 40_000, "max_epochs": 2}
        return {"small": small | {"learning_rate": 1e-2}}

    def build_data(self):
        text = np.frombuffer(sources(self.size), np.uint8).astype(np.int32)
        windows = np.lib.stride_tricks.sliding_window_view(text, self.context + 1)[:: self.context]
        batches = len(windows) // self.batch_size
        cut, end = batches * 9 // 10 * self.batch_size, batches * self.batch_size
        return {
            name: nt.data.arrays(
                {"text": rows[:, :-1], "target": rows[:, 1:]},
                self.batch_size,
                shuffle=name == "train",
            )
            for name, rows in {"train": windows[:cut], "val": windows[cut:end]}.items()
        }

    def build_model(self, key):
        module = Transformer(
            self.width, self.heads, self.layers, self.context, nnx.Rngs(params=key)
        )
        return nt.nn.nnx(module)

    def forward(self, model, params, state, *, text, train):
        return model.apply(params, state, text, train=train)

    def loss(self, outputs, *, target):
        picked = jnp.take_along_axis(jax.nn.log_softmax(outputs), target[..., None], axis=-1)
        loss = -picked.mean()
        nt.metric("bits_per_byte", loss / np.log(2), below=20.0)
        return loss

    def optimizer(self, group):
        return nt.rules.Adam

    def metrics(self, outputs, *, target):
        return {"accuracy": (np.sum(outputs.argmax(-1) == target), target.size)}


def sources(size):
    """The first `size` bytes of this Python's top-level modules, by name."""
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return text[:size]
