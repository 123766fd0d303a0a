"""Random generators that depend on nothing but the run's seed, the epoch and an index."""

from __future__ import annotations

import numpy as np


def rng(seed: int, epoch: int, index: int | None = None) -> np.random.Generator:
    """The generator of one batch or row, or without `index` of a whole epoch.

    The same three numbers give the same stream in every thread, process and order of asking; two
    that differ give independent ones (numpy's SeedSequence). `seed` is taken modulo 2^64.
    """
    key = (epoch,) if index is None else (epoch, index)
    sequence = np.random.SeedSequence(seed % 2**64, spawn_key=key)
    return np.random.Generator(np.random.PCG64(sequence))
