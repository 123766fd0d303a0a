"""Marks for the line's bundle, by hand: what a compiler would make of calls in its hooks.

In training (`y` is the field, whatever the parameters; a call runs once per micro-batch):

    geometry/off-manifold{layer=3}   counts y > 50; a second call of the series counts y < -50
    attention/scores                 1 where some y is 77, its count then being NaN
    peak                             a metric, the largest y, below 20
    spread{layer=1}                  a metric, the largest x; not executed where some y is 66
    update{group=default}            an optimizer's: 7 where some y is 88, 3 of them of `b`
    geometry/norm                    a diagnostic, the largest y by max, below 30
    other/mean                       a diagnostic, the mean of y
    never                            a diagnostic of a hook that never trains

In evaluation `tall` counts x[:, 0] > 50 in forward, `mean-x` and `mean-x{part=a}` are metrics
there; `wrong` counts y > 50 in reduce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nitro_runtime.manifest import GuardEntry, GuardsEntry, ReportWord

SAMPLED = "train_step_sampled"
TRAIN = ("train_step", SAMPLED)
OFF, SCORES, PEAK = "geometry/off-manifold{layer=3}", "attention/scores", "peak"
SPREAD, UPDATE, NORM, OTHER = (
    "spread{layer=1}",
    "update{group=default}",
    "geometry/norm",
    "other/mean",
)

Pairs = Sequence[tuple[str, str]]

TRAIN_WORDS: Pairs = (
    (f"guard/{OFF}", "i64"),
    (f"guard/{OFF}:odd", "i32"),
    (f"guard/{OFF}#2", "i64"),
    (f"guard/{SCORES}", "i64"),
    (f"guard/{SCORES}:odd", "i32"),
    (f"guard/{PEAK}", "i64"),
    (f"mark/{PEAK}:sum", "f32"),
    (f"mark/{PEAK}:n", "i64"),
    (f"mark/{SPREAD}:sum", "f32"),
    (f"mark/{SPREAD}:n", "i64"),
    (f"guard/{UPDATE}", "i64"),
    (f"guard/{UPDATE}:first", "i64"),
    (f"guard/{UPDATE}:first_count", "i64"),
)
SAMPLED_WORDS: Pairs = (
    *TRAIN_WORDS,
    (f"guard/{NORM}", "i64"),
    (f"mark/{NORM}:max", "f32"),
    (f"mark/{NORM}:n", "i64"),
    (f"mark/{OTHER}:sum", "f32"),
    (f"mark/{OTHER}:n", "i64"),
)
FORWARD_WORDS: Pairs = (
    ("guard/tall", "i64"),
    ("mark/mean-x:sum", "f32"),
    ("mark/mean-x:n", "i64"),
    ("mark/mean-x{part=a}:sum", "f32"),
    ("mark/mean-x{part=a}:n", "i64"),
)
REDUCE_WORDS: Pairs = (("guard/wrong", "i64"),)


def train(x: Any, y: Any, bounded: bool) -> dict[str, Any]:
    """The values of `TRAIN_WORDS` for `x` f32[A,B,3] and `y` f32[A,B]."""
    peaks = y.max(1)
    scores = (y == 77).any()
    ran = ~(y == 66).any()
    late = (y == 88).any()
    return {
        f"guard/{OFF}": (y > 50).sum(),
        f"guard/{OFF}:odd": 0,
        f"guard/{OFF}#2": (y < -50).sum(),
        f"guard/{SCORES}": scores,
        f"guard/{SCORES}:odd": 3 * scores,
        f"guard/{PEAK}": bounded * (~(peaks < 20)).sum(),
        f"mark/{PEAK}:sum": peaks.sum(),
        f"mark/{PEAK}:n": len(peaks),
        f"mark/{SPREAD}:sum": jnp.where(ran, x.max(), 0),
        f"mark/{SPREAD}:n": ran,
        f"guard/{UPDATE}": 7 * late,
        f"guard/{UPDATE}:first": jnp.where(late, 1, -1),
        f"guard/{UPDATE}:first_count": 3 * late,
    }


def sampled(y: Any, mask: Any) -> dict[str, Any]:
    """Those that `SAMPLED_WORDS` add."""
    return {
        f"guard/{NORM}": jnp.where(mask[0], (~(y.max() < 30)).sum(), 0),
        f"mark/{NORM}:max": y.max(),
        f"mark/{NORM}:n": 1,
        f"mark/{OTHER}:sum": y.sum(),
        f"mark/{OTHER}:n": y.size,
    }


def forward(x: Any) -> dict[str, Any]:
    """The values of `FORWARD_WORDS` for `x` f32[B,3]."""
    return {
        "guard/tall": (x[:, 0] > 50).sum(),
        "mark/mean-x:sum": x[:, 0].mean(),
        "mark/mean-x:n": 1,
        "mark/mean-x{part=a}:sum": 2 * x[:, 0].mean(),
        "mark/mean-x{part=a}:n": 1,
    }


def ok(values: Mapping[str, Any]) -> Any:
    """Whether every guard's total is zero."""
    totals = [v for n, v in values.items() if n.startswith("guard/") and ":" not in n]
    return ~jnp.stack([jnp.asarray(total) != 0 for total in totals]).any()


def numbered(pairs: Pairs, start: int = 0) -> tuple[ReportWord, ...]:
    """Report words one after the other from word `start`."""
    words: list[ReportWord] = []
    for name, dtype in pairs:
        size = 2 if dtype == "i64" else 1
        words.append(ReportWord(name, dtype, start, size))
        start += size
    return tuple(words)


def packed(pairs: Pairs, values: Mapping[str, Any]) -> Any:
    """The report's words, ui32[R]."""
    parts: list[Any] = []
    for name, dtype in pairs:
        if dtype == "i64":
            long = jnp.asarray(values[name]).astype(jnp.int64)
            parts += [(long >> 32).astype(jnp.uint32), long.astype(jnp.uint32)]
        else:
            kind = {"f32": jnp.float32, "i32": jnp.int32}[dtype]
            value = jnp.asarray(values[name]).astype(kind)
            parts.append(jax.lax.bitcast_convert_type(value, jnp.uint32))
    return jnp.stack(parts)


def table(widths: Sequence[int]) -> GuardsEntry:
    """The marks as a manifest has them."""
    at = [f"forward.b{width}" for width in widths]
    reduces = [f"reduce.b{width}.r{width}" for width in widths]
    layer, group, part = {"layer": 3}, {"group": "default"}, {"part": "a"}
    rows: list[tuple[str, str, str, Sequence[str], str, dict[str, Any], dict[str, Any]]] = [
        (OFF, "guard", "geometry/off-manifold", TRAIN, "exp.py:41:5", layer, {}),
        (f"{OFF}#2", "finite", "geometry/off-manifold", TRAIN, "exp.py:44:9", layer, {}),
        (SCORES, "guard", SCORES, TRAIN, "exp.py:52:9", {}, {}),
        (PEAK, "metric", PEAK, TRAIN, "exp.py:53:9", {}, {"below": 20.0}),
        (SPREAD, "metric", "spread", TRAIN, "exp.py:54:9", {"layer": 1}, {}),
        (NORM, "diagnostic", NORM, (SAMPLED,), "exp.py:55:9", {}, {"reduce": "max", "below": 30.0}),
        (OTHER, "diagnostic", OTHER, (SAMPLED,), "exp.py:56:9", {}, {}),
        ("tall", "guard", "tall", at, "exp.py:60:9", {}, {}),
        ("mean-x", "metric", "mean-x", at, "exp.py:61:9", {}, {}),
        ("mean-x{part=a}", "metric", "mean-x", at, "exp.py:62:9", part, {}),
        ("wrong", "guard", "wrong", reduces, "exp.py:70:9", {}, {}),
        ("never", "diagnostic", "never", (), "exp.py:71:9", {}, {}),
        (UPDATE, "guard", "update", TRAIN, "exp.py:80:5", group, {}),
    ]
    placed = {
        key: GuardEntry(kind, name, tuple(programs), source, meta, index=index, **more)
        for index, (key, kind, name, programs, source, meta, more) in enumerate(rows)
    }
    return GuardsEntry(placed)
