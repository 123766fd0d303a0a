"""A weighted linear regression as a module, with numpy for its imported functions.

Small enough to say by hand what a training step of it must give: `expected_step` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from reference import DTYPES, Outcome, first_slots, run_program

from nitro_dialect.ir import CHANNELS, Device, Function, Group, Leaf, Mark, Module, Parameter
from nitro_dialect.types import F32, I32, SEED, WORDS, TensorType, TreeType
from nitroc import rules
from nitroc.passes import pipeline
from nitroc.programs import forward_program, init_program, reduce_program, train_program
from nitroc.rules import Rule

ROWS, INPUTS, TARGETS = 4, 3, 2
MARKS = (
    Mark("peak", "diagnostic", "peak", reduce="max", below=0.5, source="exp.py:3:5"),
    Mark("big{at=1.5,layer=0}", "guard", "big", (("at", 1.5), ("layer", 0)), source="exp.py:4:5"),
    Mark("low", "diagnostic", "low", reduce="min", source="exp.py:5:5"),
    Mark("x", "finite", "x", source="exp.py:6:5"),
    Mark("size", "metric", "size", below=20.0, source="exp.py:7:5"),
    Mark("seen", "diagnostic", "seen", above=-0.5, source="exp.py:8:5"),
)
"""The marks of `Settings(marks=True)`; results come in another order."""

DIAGNOSTICS = 3
WEAK = TensorType("f32", weak=True)
Tree = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """One training step's configuration; a pipeline follows from it."""

    accum: int = 1
    clip: float | None = None
    guard: bool = True
    rule: Rule = field(default=rules.SGD)
    decay: float | None = None
    bias: str = "f32"
    master: bool = True
    stateful: bool = True
    metrics: bool = True
    marks: bool = False
    learning_rate: float = 0.1

    @property
    def pipeline(self) -> str:
        passes = ["diagnose"] if self.marks else []
        passes += ["differentiate", f"accumulate{{steps={self.accum}}}"]
        passes += [f"clip{{max={self.clip}}}"] if self.clip else []
        passes += ["guard" if self.guard else "guard{finite=false}"]
        passes += [f"optimizer{{rule={self.rule.name},master={str(self.master).lower()}}}"]
        passes += ["decay"] if self.decay is not None else []
        return ",".join([*passes, "commit", "expand"])

    @property
    def scalars(self) -> dict[str, float]:
        given = {"shift": 0.25, "learning_rate": self.learning_rate, **self.rule.fields}
        return given if self.decay is None else {**given, "weight_decay": self.decay}


def module(settings: Settings, leaves: tuple[Leaf, ...] = ()) -> Module:
    """The module before its first pass, with other `leaves` than the regression's if given."""
    leaves = leaves or (
        Leaf("dense.bias", settings.bias, (TARGETS,)),
        Leaf("dense.kernel", "f32", (INPUTS, TARGETS), frozenset({"decay"})),
    )
    mean = (Leaf("mean", "f32", ()),) if settings.stateful else ()
    outputs = Group("outputs.b4", "outputs", (Leaf("logits", "f32", (ROWS, TARGETS)),))
    made = Module(
        "Regression",
        devices=[Device("shift", WEAK, 0.25)],
        groups={
            "default": Group("default", "param", leaves),
            "state": Group("state", "state", mean),
            outputs.name: outputs,
        },
        marks={mark.key: mark for mark in settings.rule.marks},
        rules={settings.rule.name: settings.rule.build()},
    )
    if settings.marks:
        made.marks = {mark.key: mark for mark in MARKS} | made.marks
    for function in functions(settings):
        made.functions[function.name] = function
    train_program(made)
    forward_program(made, "forward.b4")
    reduce_program(made, "reduce.b4.r3")
    init_program(made)
    return made


def functions(settings: Settings) -> list[Function]:
    params, state = Parameter("params", TreeType("default")), Parameter("state", TreeType("state"))
    shift, seed = Parameter("shift", WEAK), Parameter("seed", SEED)
    step = (Parameter("step", WORDS), Parameter("micro", I32))
    place = (Parameter("split", I32), Parameter("index", I32))
    x, y = Parameter("x", _rows(INPUTS)), Parameter("y", _rows(TARGETS))
    rows = (Parameter("m", TensorType("f32", (ROWS,))), x, y)
    outputs = Parameter("outputs", TreeType("outputs.b4"))
    sums = [Parameter("loss", F32), Parameter("weight", F32)]
    if settings.metrics:
        sums += [Parameter("metric.mae.sum", F32), Parameter("metric.mae.count", F32)]
    given = (params, state, shift, seed, *step, *rows)
    counts = {s: _channels(s) if settings.marks else () for s in (False, True)}
    gradient = Parameter("grad", TreeType("default"))
    reduced = (
        Parameter("loss.sum", F32),
        Parameter("loss.weight", F32),
        Parameter("metric.errors.concat", TensorType("f32", (3,))),
    )
    made = [
        Function("forward.b4", (params, state, shift, seed, *place, x), (outputs,), "0c"),
        Function("reduce.b4.r3", (outputs, shift, seed, *place, *rows), reduced, "0d"),
        Function("init", (seed,), (params, state), "0e"),
    ]
    for sampled in (False, True) if settings.marks else (False,):
        name, digest = ("objective.sampled", "1") if sampled else ("objective", "0")
        results = (*sums, *counts[sampled])
        grad = (*results, gradient, state)
        made.append(Function(name, given, (*results, state), f"{digest}a"))
        made.append(Function(f"{name}.grad", given, grad, f"{digest}b", name, "params"))
    return made


def _channels(sampled: bool) -> tuple[Parameter, ...]:
    names = mark_values(np, np.zeros((ROWS, INPUTS)), sampled)
    return tuple(
        Parameter(name, TensorType(CHANNELS[name.rpartition(":")[2]][0])) for name in names
    )


def mark_values(xp: Any, x: Any, sampled: bool) -> dict[str, Any]:
    """What the marks of one micro-batch count, by result; `xp`: numpy or jax's, with 64 bits."""
    one, total = xp.asarray(1, xp.int64), xp.abs(x).sum()
    values = {
        "mark.size:sum": total,
        "mark.size:n": one,
        "mark.size:count": xp.asarray(~(total < 20), xp.int64),
        "mark.big{at=1.5,layer=0}:count": xp.sum(xp.abs(x) > 1.5, dtype=xp.int64),
        "mark.big{at=1.5,layer=0}:odd": xp.max(xp.where(x > 2, 3, xp.where(x < -2, 1, 0))),
        "mark.x:count": xp.sum(~xp.isfinite(x), dtype=xp.int64),
    }
    values["mark.big{at=1.5,layer=0}:odd"] = values["mark.big{at=1.5,layer=0}:odd"].astype(xp.int32)
    if not sampled:
        return values
    return values | {
        "mark.peak:max": xp.max(x),
        "mark.peak:n": one,
        "mark.peak:count": xp.sum(x > 0.5, dtype=xp.int64),
        "mark.low:min": xp.min(x),
        "mark.low:n": one,
        "mark.seen:sum": total,
        "mark.seen:n": one,
        "mark.seen:count": xp.sum(x < -0.5, dtype=xp.int64),
    }


def _rows(width: int) -> TensorType:
    return TensorType("f32", (ROWS, width))


def gradient(settings: Settings, sampled: bool = False) -> Callable[..., tuple[Any, ...]]:
    """The imported `objective.grad`: sums over rows, marks, the gradient of the loss's sum."""

    def call(p: Tree, s: Tree, shift: Any, seed: Any, step: Any, micro: Any, *rows: Any) -> Any:
        m, x, y = (r.astype(np.float64) for r in rows)
        kernel, bias = (p[f"dense.{k}"].astype(np.float64) for k in ("kernel", "bias"))
        error = x @ kernel + bias - y - float(shift) - 0.1 * int(micro) - 0.01 * int(step[1])
        scaled = m[:, None] * error
        grads = {path: np.zeros(leaf.shape) for path, leaf in p.items()}
        grads |= {"dense.bias": scaled.sum(0), "dense.kernel": x.T @ scaled}
        sums = [0.5 * (scaled * error).sum(), m.sum()]
        sums += [np.abs(scaled).sum(), m.sum()] if settings.metrics else []
        sums += mark_values(np, rows[1], sampled).values() if settings.marks else []
        state = {"mean": 0.5 * s["mean"] + 0.5 * x.mean()} if settings.stateful else {}
        return (*sums, {path: grads[path] for path in p}, state)

    return call


def expected_step(
    settings: Settings, params: Tree, slots: Tree, state: Tree, t: int, batch: Tree
) -> Tree:
    """A committed step in plain f64 numpy, from the definitions and none of the passes."""
    call = gradient(settings)
    totals: list[float] = []
    g: Tree = {}
    for k in range(settings.accum):
        rows = (batch[name][k] for name in ("m", "x", "y"))
        *sums, grads, state = call(params, state, 0.25, None, (0, t), k, *rows)
        totals = list(map(sum, zip(totals or [0.0] * len(sums), sums, strict=True)))
        g = {path: g.get(path, 0) + _rounded(params[path], v) for path, v in grads.items()}
    g = {path: v / totals[1] for path, v in g.items()}
    norm = np.sqrt(sum((v**2).sum() for v in g.values()))
    if settings.clip and norm > settings.clip:
        g = {path: v * (settings.clip / norm) for path, v in g.items()}
    made: Tree = {"loss": totals[0] / totals[1], "norm": norm, "state": state, "p": {}}
    for path, v in g.items():
        held = slots["master"][path] if "master" in slots else params[path]
        own = [slots[name][path] for name in settings.rule.slots]
        counted = {"t": t} if "t" in settings.rule.positional else {}
        fields = {k: _f32(x) for k, x in settings.rule.fields.items()}
        u, *own = settings.rule.update(v, *own, **counted, **fields)
        if settings.decay is not None and path.endswith("kernel"):
            u = u + _f32(settings.decay) * held
        made["p"][path] = held - _f32(settings.learning_rate) * u
        for name, x in zip(settings.rule.slots, own, strict=True):
            made.setdefault(name, {})[path] = x
    return made


def _f32(value: float) -> float:
    """A scalar as the program gets it."""
    return float(np.float32(value))


def _rounded(like: Any, value: Any) -> Any:
    """A gradient comes in its leaf's dtype; f32 ones are f64 here."""
    narrow = like.dtype.itemsize < 4
    return np.asarray(value).astype(like.dtype if narrow else np.float64).astype(np.float64)


def first_params(settings: Settings, rng: np.random.Generator) -> Tree:
    bias = rng.normal(size=TARGETS).astype(np.float32).astype(DTYPES[settings.bias])
    kernel = rng.normal(size=(INPUTS, TARGETS)).astype(np.float32)
    return {"dense.bias": bias, "dense.kernel": kernel}


def batch(settings: Settings, rng: np.random.Generator) -> Tree:
    """One step's batch, `[accum, rows, ...]`, with unequal weights."""
    lead = (settings.accum, ROWS)
    return {
        "m": rng.uniform(0.5, 2, lead).astype(np.float32),
        "x": rng.normal(size=(*lead, INPUTS)).astype(np.float32),
        "y": rng.normal(size=(*lead, TARGETS)).astype(np.float32),
    }


def first_state(settings: Settings) -> Tree:
    return {"mean": np.float32(0)} if settings.stateful else {}


def stages(settings: Settings, start: Module | None = None) -> dict[str, Module]:
    """The module after every pass by the pass's name, each printed, read back and compared."""
    found: dict[str, Module] = {}
    pipeline.run(
        start or module(settings),
        settings.pipeline,
        roundtrip=True,
        on_stage=lambda number, name, stage: found.update({name: stage}),
    )
    return found


def inputs(
    settings: Settings,
    stage: Module,
    params: Tree,
    state: Tree,
    rows: Tree,
    program: str = "train_step",
) -> Tree:
    """What the train step of `stage` takes before its first step; nothing is selected."""
    values = {
        **first_slots(stage, program, params),
        **{k: np.float32(v) for k, v in settings.scalars.items()},
        **rows,
        "p": params,
        "s": state,
        "seed": np.array([0, 7], np.uint32),
        "mask": np.zeros(DIAGNOSTICS, np.bool_),
    }
    names = [i.value.name for i in stage.programs[program].inputs]
    return {name: values[name] for name in names}


def run_step(
    settings: Settings,
    stage: Module,
    values: Tree,
    objective: Callable[..., Any] | None = None,
    wide: bool = False,
    program: str = "train_step",
) -> Outcome:
    imported = {
        "objective.grad": objective or gradient(settings),
        "objective.sampled.grad": gradient(settings, sampled=True),
    }
    return run_program(stage, program, values, imported, wide=wide)
