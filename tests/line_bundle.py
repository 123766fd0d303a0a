"""A bundle that fits a line by weighted least squares with momentum, its programs traced by jax.

What a compiler would emit for it, small enough to say by hand: `w` (3 floats) and `b` packed in one
buffer, momentum beside them, a running mean as model state, counters, the finite guard, train
metrics, a scheduled-or-not learning rate and a Device scalar `shift`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import line_marks
import numpy as np
from jaxlib.mlir.dialects import stablehlo
from tiny_bundle import IR_TEXT, Program

from nitro_runtime.bundle import Bundle
from nitro_runtime.data import arrays
from nitro_runtime.dtypes import np_dtype
from nitro_runtime.host import NoHost
from nitro_runtime.manifest import (
    ArgEntry,
    BatchEntry,
    BatchingEntry,
    BufferEntry,
    ExperimentEntry,
    FieldEntry,
    GroupEntry,
    GuardsEntry,
    InterfaceEntry,
    LeafEntry,
    Manifest,
    NumericsEntry,
    ReportWord,
    RequiresEntry,
    ResultEntry,
    ScalarEntry,
    SlotEntry,
    TensorEntry,
)
from nitro_runtime.options import RunOptions
from nitroc.bundle.assemble import ProgramPart, assemble

WIDTH, INPUTS = 4, 3
TREE = {"dict": [["pred", {"leaf": "pred"}]]}


@dataclass(frozen=True)
class Line:
    """The bundle's settings. `loss`: `square`, or `batch` (the mean of the field `y`, whatever the
    parameters). `rows`: row counts with a reduce program. `mixes`: forward subtracts the mean of
    its batch, so it has a program per row count and is never filled. `marks`: those of
    `line_marks`; forward then has a program per row count too. `bounded`: `peak` has its bound."""

    accum: int = 1
    guard: bool = True
    loss: str = "square"
    rows: tuple[int, ...] = (4, 2)
    mixes: bool = False
    marks: bool = False
    bounded: bool = True
    width: int = WIDTH


def _args(*rows: tuple[Any, ...]) -> tuple[ArgEntry, ...]:
    return tuple(ArgEntry(*row) for row in rows)


PARAM = ("param.p:packed.f32", "param", "p", "packed.f32", "f32", (4,))
MU = ("slot.mu:packed.f32", "slot", "mu", "packed.f32", "f32", (4,))
T = ("slot.t", "slot", "t", None, "i64", ())
ATTEMPT = ("slot.attempt", "slot", "attempt", None, "i64", ())
HALTED = ("slot.halted", "slot", "halted", None, "i1", ())
STATE = ("state.s:mean", "state", "s", "mean", "f32", ())
SEED = ("seed", "seed", "seed", None, "ui32", (2,))
SPLIT = ("split", "split", "split", None, "i32", ())
INDEX = ("index", "index", "index", None, "i32", ())
SCALARS = (
    ScalarEntry("learning_rate", "f32", "optimizer", 0),
    ScalarEntry("shift", "f32", "device", 1),
)
WORDS = (
    ReportWord("loss", "f32", 0, 1),
    ReportWord("weight", "f32", 1, 1),
    ReportWord("metric/mae.sum", "f32", 2, 1),
    ReportWord("metric/mae.count", "f32", 3, 1),
    ReportWord("grad_norm", "f32", 4, 1),
    ReportWord("committed", "i1", 5, 1),
    ReportWord("first_bad", "i64", 6, 2),
    ReportWord("halted", "i1", 8, 1),
)
UNGUARDED = WORDS[:4]
MASK = ("mask", "mask", "mask", None, "i1", (3,))


def _batch(lead: tuple[int, ...]) -> tuple[ArgEntry, ...]:
    return _args(
        ("batch.m", "batch", "m", None, "f32", lead),
        ("batch.x", "batch", "x", None, "f32", (*lead, INPUTS)),
        ("batch.y", "batch", "y", None, "f32", lead),
    )


def predict(p: Any, x: Any, mixes: bool = False) -> Any:
    if mixes:
        x = x - x.mean(0)
    return x @ p[:3] + p[3]


def train_step(line: Line, *, sampled: bool = False) -> Program:
    args = (
        *_args(PARAM, MU, T, ATTEMPT, HALTED, STATE),
        ArgEntry("scalars", "scalars", "scalars", None, "f32", (1, 2)),
        ArgEntry(*SEED),
        *_batch((1, line.accum, line.width)),
        ArgEntry("steps", "steps", "steps", None, "i32", ()),
        *_args(*([MASK] if sampled else [])),
    )
    words = WORDS if line.guard else UNGUARDED
    pairs = line_marks.SAMPLED_WORDS if sampled else line_marks.TRAIN_WORDS
    if line.marks:
        words += line_marks.numbered(pairs, sum(word.words for word in words))
    size = sum(word.words for word in words)
    living = args[:6]
    results = (
        *(ResultEntry(a.name, a.role, a.value, a.buffer, a.dtype, a.shape) for a in living),
        ResultEntry("report", "report", "report", None, "ui32", (1, size)),
    )

    def main(p, mu, t, attempt, halted, mean, scalars, seed, m, x, y, steps, mask=None):
        rate, shift = scalars[0, 0], scalars[0, 1]
        step = attempt + 1
        noise = ((step + seed[1].astype(jnp.int64)) % 7).astype(jnp.float32) * jnp.float32(1e-3)
        m, x, y = m[0], x[0], y[0]

        def sums(p: Any) -> Any:
            error = predict(p, x) + shift + noise - y
            if line.loss == "batch":
                return (m * y).sum() + 0 * p.sum(), error
            return (m * error**2).sum(), error

        (total, error), g = jax.value_and_grad(sums, has_aux=True)(p)
        weight = m.sum()
        loss, g = total / weight, g / weight
        squares = jnp.stack([(g[:3] ** 2).sum(), g[3] ** 2])
        norm = jnp.sqrt(squares.sum())
        ok = jnp.isfinite(loss) & jnp.isfinite(norm) & (weight > 0) & ~halted
        marks = line_marks.train(x, y, line.bounded) if line.marks else {}
        if sampled:
            marks |= line_marks.sampled(y, mask)
        if line.marks:
            ok &= line_marks.ok(marks)
        if not line.guard:
            ok = jnp.array(True)
        new_mu = jnp.float32(0.9) * mu + g
        new = (p - rate * new_mu, new_mu, t + 1, step, halted, 0.5 * mean + 0.5 * x.mean())
        old = (p, mu, t, attempt, halted | ~ok, mean)
        out = [jnp.where(ok, a, b) for a, b in zip(new, old, strict=True)]
        bad = jnp.where(~jnp.isfinite(squares), jnp.arange(2), 2).min()
        bad = jnp.where(bad == 2, -1, bad).astype(jnp.int64)
        floats = jnp.stack([loss, weight, (m * abs(error)).sum(), weight])
        report = jax.lax.bitcast_convert_type(floats.astype(jnp.float32), jnp.uint32)
        if line.guard:
            more = [
                jax.lax.bitcast_convert_type(norm, jnp.uint32),
                ok.astype(jnp.uint32),
                (bad >> 32).astype(jnp.uint32),
                bad.astype(jnp.uint32),
                out[4].astype(jnp.uint32),
            ]
            report = jnp.concatenate([report, jnp.stack(more)])
        if line.marks:
            report = jnp.concatenate([report, line_marks.packed(pairs, marks)])
        return (*out, report[None])

    donate = tuple(range(6))
    name = "train_step_sampled" if sampled else "train_step"
    return Program(name, _lower(main, args, donate), args, results, SCALARS, words)


def forward(line: Line, width: int) -> Program:
    args = (
        *_args(PARAM, STATE),
        ArgEntry("scalars", "scalars", "scalars", None, "f32", (2,)),
        *_args(SEED, SPLIT, INDEX),
        ArgEntry("batch.x", "batch", "x", None, "f32", (width, INPUTS)),
    )
    results = (ResultEntry("outputs.pred", "outputs", "outputs", "pred", "f32", (width,)),)
    words = line_marks.numbered(line_marks.FORWARD_WORDS) if line.marks else ()
    size = sum(word.words for word in words)
    if line.marks:
        results += (ResultEntry("report", "report", "report", None, "ui32", (size,)),)

    def main(p, mean, scalars, seed, split, index, x):
        outputs = (predict(p, x, line.mixes),)
        if not line.marks:
            return outputs
        return (*outputs, line_marks.packed(line_marks.FORWARD_WORDS, line_marks.forward(x)))

    return Program(f"forward.b{width}", _lower(main, args), args, results, SCALARS, words)


def reduce(line: Line, width: int, rows: int) -> Program:
    args = (
        ArgEntry("outputs.pred", "outputs", "outputs", "pred", "f32", (width,)),
        ArgEntry("scalars", "scalars", "scalars", None, "f32", (2,)),
        *_args(SEED, SPLIT, INDEX),
        *_batch((width,)),
    )
    words = (
        ReportWord("loss.sum", "f32", 0, 1),
        ReportWord("loss.weight", "f32", 1, 1),
        ReportWord("metric.worst.max", "f32", 2, 1),
        *(line_marks.numbered(line_marks.REDUCE_WORDS, 3) if line.marks else ()),
    )
    size = sum(word.words for word in words)
    results = (ResultEntry("report", "report", "report", None, "ui32", (size,)),)

    def main(pred, scalars, seed, split, index, m, x, y):
        m, error = m[:rows], (pred + scalars[1] - y)[:rows]
        values = y[:rows] if line.loss == "batch" else error**2
        report = jnp.stack([(m * values).sum(), m.sum(), abs(error).max()])
        report = jax.lax.bitcast_convert_type(report, jnp.uint32)
        if not line.marks:
            return (report,)
        wrong = {"guard/wrong": (y[:rows] > 50).sum()}
        return (jnp.concatenate([report, line_marks.packed(line_marks.REDUCE_WORDS, wrong)]),)

    return Program(f"reduce.b{width}.r{rows}", _lower(main, args), args, results, SCALARS, words)


def _lower(
    main: Callable[..., Any], args: tuple[ArgEntry, ...], donate: tuple[int, ...] = ()
) -> bytes:
    with jax.enable_x64(True):
        shapes = [jax.ShapeDtypeStruct(a.shape, np_dtype(a.dtype)) for a in args]
        main.__name__ = "main"
        lowered = jax.jit(main, donate_argnums=donate, keep_unused=True).lower(*shapes)
        text = str(lowered.compiler_ir("stablehlo"))
    return stablehlo.serialize_portable_artifact_str(text.encode(), "1.13.7")


def manifest(line: Line, splits: Mapping[str, int], width: int = 8) -> Manifest:
    leaves = (
        LeafEntry("w", "f32", (3,), ("decay",), "packed.f32", 0),
        LeafEntry("b", "f32", (), (), "packed.f32", 3),
    )
    mean = LeafEntry("mean", "f32", (), (), "mean", 0)
    rows = TensorEntry("f32", (line.width,))
    columns = TensorEntry("f32", (line.width, INPUTS))
    schema = BatchEntry({"m": rows, "x": columns, "y": rows}, line.width, None)
    return Manifest(
        name="Line",
        experiment=ExperimentEntry("Line", None),
        numerics=NumericsEntry("default", "threefry2x32"),
        pipeline="differentiate,commit",
        fields={"width": FieldEntry("GraphConst", "int", width, "", "default")},
        groups=(
            GroupEntry("default", "param", leaves, (BufferEntry("packed.f32", "f32", (4,)),)),
            GroupEntry("state", "state", (mean,), (BufferEntry("mean", "f32", ()),)),
            *(
                GroupEntry(
                    f"outputs.b{width}",
                    "outputs",
                    (LeafEntry("pred", "f32", (width,), (), "pred", 0),),
                    (BufferEntry("pred", "f32", (width,)),),
                )
                for width in widths(line)
            ),
        ),
        slots=(
            SlotEntry("mu", "default", "f32", "zeros"),
            SlotEntry("t", None, "i64", "0"),
            SlotEntry("attempt", None, "i64", "0"),
            SlotEntry("halted", None, "i1", "false"),
        ),
        batch_schema=dict.fromkeys(splits, schema),
        interface=InterfaceEntry({"x": columns}, TREE),
        batching=BatchingEntry(widths(line), not line.mixes),
        guards=line_marks.table(widths(line)) if line.marks else GuardsEntry(),
        requires=RequiresEntry(platforms=("cpu",)),
        producer={"nitroc": "0.1.0"},
    )


def widths(line: Line) -> tuple[int, ...]:
    each = line.mixes or line.marks
    return tuple(sorted(set(line.rows), reverse=True)) if each else (line.width,)


def files(line: Line = Line(), **changes: Any) -> dict[str, bytes]:
    """The bundle's files."""
    at = widths(line)
    programs = [ProgramPart(train_step(line), "train_step", _dims(line, line.width))]
    if line.marks:
        part = train_step(line, sampled=True)
        programs += [ProgramPart(part, "train_step_sampled", _dims(line, line.width))]
    programs += [ProgramPart(forward(line, w), "forward", {"width": w}) for w in at]
    each = line.mixes or line.marks
    pairs = [(r, r) for r in at] if each else [(line.width, r) for r in line.rows]
    programs += [
        ProgramPart(reduce(line, w, r), "reduce", {"width": w, "rows": r}) for w, r in pairs
    ]
    weights = {
        "param/w": np.array([0.1, -0.2, 0.3], np.float32),
        "param/b": np.array(0.5, np.float32),
        "state/mean": np.array(0.0, np.float32),
    }
    return assemble(
        replace(manifest(line, {"train": 0, "val": 0, "test": 0}), **changes),
        programs,
        functions={},
        ir={"import": IR_TEXT, "train_step": IR_TEXT},
        weights=weights,
        constants={},
        host={},
    )


def _dims(line: Line, width: int) -> dict[str, int]:
    return {"width": width, "accum": line.accum, "capacity": 1}


_MADE: dict[Line, Bundle] = {}


def bundle(line: Line = Line()) -> Bundle:
    """The bundle in memory; made once per settings."""
    if line not in _MADE:
        _MADE[line] = Bundle.from_files(files(line), trusted=True)
    return _MADE[line]


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of a noiseless line with unequal weights."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, INPUTS)).astype(np.float32)
    y = (x @ np.array([1.0, 2.0, -1.0], np.float32) + 0.25).astype(np.float32)
    return {"x": x, "y": y, "m": rng.uniform(0.5, 1.5, count).astype(np.float32)}


def host(train: int = 16, val: int | None = 6, **changes: Any) -> NoHost:
    """A host with `train` rows shuffled and `val` rows, batches of 4."""
    splits: dict[str, Any] = {"train": arrays(rows(train), WIDTH, shuffle=True, drop_last=True)}
    if val is not None:
        splits["val"] = arrays(rows(val, 1), WIDTH)
    given: dict[str, Any] = {
        "splits": splits,
        "values": {"learning_rate": 0.05, "shift": 0.0},
    }
    return NoHost(**{**given, **changes})


def options(path: Any, **changes: Any) -> RunOptions:
    """Quiet run options in `path`."""
    return RunOptions(**{"run_dir": path / "run", "quiet": True, "max_epochs": 3, **changes})
