"""Keys of random numbers, folded inside the traced function from raw words.

In training a key is a pure function of seed, step, micro-batch and call site (the hook); elsewhere
of seed, split, batch index and call site. Always threefry2x32, whatever jax's default is.
"""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp

IMPLEMENTATION = "threefry2x32"

_TRAINING, _EVALUATION = 0, 1


def seed_key(seed: jax.Array) -> jax.Array:
    """The key of a seed: `ui32[2]`, high word first. `build_model` is handed this one."""
    return jax.random.wrap_key_data(seed, impl=IMPLEMENTATION)


def training_key(seed: jax.Array, step: jax.Array, micro: jax.Array, site: str) -> jax.Array:
    """`step`: `ui32[2]`, high word first; `micro`: `i32`; `site`: the name of the hook."""
    return _fold(seed, _TRAINING, step[0], step[1], micro, call_site(site))


def evaluation_key(seed: jax.Array, split: jax.Array, index: jax.Array, site: str) -> jax.Array:
    """`split` and `index` of the batch: `i32`; `site`: the name of the hook."""
    return _fold(seed, _EVALUATION, split, index, call_site(site))


def call_site(name: str) -> int:
    """A word for a hook's name, the same in every process."""
    return zlib.crc32(name.encode())


def _fold(seed: jax.Array, *words: int | jax.Array) -> jax.Array:
    key = seed_key(seed)
    for word in words:
        key = jax.random.fold_in(key, jnp.asarray(word, jnp.uint32))
    return key
