"""Rules that speak of whole leaves, for tests of every layer below."""

from __future__ import annotations

from typing import Any

import nitroc as nt

LIMIT = 3.0
LARGE = "update/large{group=default,layer=3}"
RATIO = "update/ratio{group=default}"
PEAK = "update/peak{group=default}"
FINITE = "update/finite{group=default}"


@nt.rule(slots={"mu": nt.zeros})
def trusted(g: Any, p: Any, mu: Any, t: Any, *, b1: float = 0.9, eps: float = 1e-6) -> Any:
    """Momentum scaled by the ratio of norms of You et al. 2020: `optax.scale_by_trust_ratio`."""
    xp = nt.namespace(g)
    mu = b1 * mu + (1 - b1) * g
    u = mu / (1 - b1**t)
    of_p, of_u = xp.linalg.vector_norm(p), xp.linalg.vector_norm(u)
    ratio = xp.where((of_p == 0) | (of_u == 0), 1.0, of_p / (of_u + eps))
    return ratio * u, mu


@nt.rule(slots={"mu": nt.zeros})
def watched(g: Any, mu: Any, t: Any, *, b1: float = 0.9) -> Any:
    """Momentum that counts elements of its average beyond `LIMIT`, every kind of mark beside."""
    xp = nt.namespace(g)
    mu = b1 * mu + (1 - b1) * g
    u = mu / (1 - b1**t)
    nt.guard("update/large", nt.count_where(abs(u) > LIMIT), layer=3)
    nt.metric("update/ratio", xp.mean(abs(u)), below=50)
    nt.diagnostic("update/peak", xp.max(abs(u)), reduce="max", below=2.0)
    nt.assert_finite("update/finite", (u, mu))
    return u, mu
