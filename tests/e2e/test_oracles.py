"""One experiment held against what must agree with it: a resumed run, JAX's own dispatch,
StableHLO's interpreter and the numpy meaning of the IR."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import reference
from emission import Case, assert_close, assert_same
from tracing import run as run_imported
from whole import module

import nitroc as nt
from nitro_dialect.types import TreeType
from nitro_runtime import pjrt
from nitro_runtime.dtypes import np_dtype
from nitro_runtime.snapshot import read_directory
from nitro_runtime.tensors import read_tensors
from nitroc.building import Built, build_files
from nitroc.frontend.importer import ImportedFunction
from nitroc.frontend.setup import prepare
from nitroc.lowering import Target

SOURCE = '''
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

import nitroc as nt


class Noisy(nt.Experiment):
    """Noise from a key in the state, a running mean beside it, dropout from the step's key."""

    learning_rate: float = 0.05
    weight_decay: float = 0.1
    eps: float = 1e-3
    scale: nt.Device[float] = 0.5
    shown: nt.Device[tuple] = ((1.0, 2.0), 3)
    gradient_clip_norm: float = 0.5
    accum: int = 2
    max_epochs: int = 6

    def build_data(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(64, 3)).astype(np.float32)
        y = (x @ np.float32([[1, -1], [0, 2], [1, 1]])).astype(np.float32)
        m = rng.uniform(0.5, 1.5, 64).astype(np.float32)
        rows = {"x": x, "y": y, "m": m}
        return {
            "train": nt.data.arrays({n: v[:48] for n, v in rows.items()}, 4, shuffle=True),
            "val": nt.data.arrays({n: v[48:] for n, v in rows.items()}, 5),
        }

    def build_model(self, key):
        params = {
            "hidden": {"w": jax.random.normal(key, (3, 8)), "b": jnp.zeros(8)},
            "out": {"w": jax.random.normal(key, (8, 2)), "b": jnp.zeros(2)},
        }
        state = {"key": jax.random.key(3), "mean": jnp.zeros(3), "seen": jnp.int32(0)}
        return None, params, state

    def forward(self, model, params, state, *, x, train, key):
        mean = state["mean"]
        if train:
            own, following = jax.random.split(state["key"])
            state = {
                "key": following,
                "mean": 0.9 * mean + 0.1 * x.mean(0),
                "seen": state["seen"] + 1,
            }
            x = x + 0.01 * jax.random.normal(own, x.shape)
            x = jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)
        h = jnp.tanh((x - mean) @ params["hidden"]["w"] + params["hidden"]["b"])
        return h @ params["out"]["w"] + params["out"]["b"], state

    def loss(self, outputs, *, y, m):
        factor = self.scale * self.shown[1] / self.shown[0][1]
        return (m * ((outputs - y) ** 2).sum(-1)).sum() * factor, m.sum()

    def train_metrics(self, outputs, *, y, m):
        return {"off": (abs(outputs - y).sum(), m.sum())}

    def metrics(self, outputs, *, y):
        return {"worst": nt.Max(abs(outputs - y).max())}

    def optimizer(self, group):
        return nt.rules.Adam


class Stopper:
    """Asks for the end while epoch `last` is validated."""

    def __init__(self, last):
        self.last, self.nitro = last, None

    def log_params(self, params, **_): ...
    def log_other(self, key, value, **_): ...
    def finish(self, status, **_): ...

    def log_metrics(self, metrics, *, epoch, context, **_):
        if context == "validate" and epoch == self.last:
            self.nitro.request_stop()


def main(run_dir, last, resume):
    stopper = Stopper(last)
    stopper.nitro = nt.Nitro(
        Noisy(),
        run_dir=run_dir,
        quiet=True,
        schedules={"learning_rate": lambda total: lambda step: 0.05 * (1 - step / (2 * total))},
        early_stop=nt.EarlyStopping(patience=4, min_delta=10.0),
        checkpointer=nt.TopKCheckpointer(k=2),
        logger=[nt.JSONLogger(), stopper],
        resume=resume,
    )
    print(stopper.nitro.train().stop_reason)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else False)
'''


# ----------------------------------------------------------------- a run and its continuation


def process(script: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def curves(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Train and validate lines: those without times."""
    return [r for r in rows if r["type"] == "metrics" and r["context"] in ("train", "validate")]


@pytest.mark.parametrize("last", [1, 4])
def test_a_run_resumed_in_another_process_is_the_run_that_never_stopped(
    tmp_path: Path, last: int
) -> None:
    script, whole, parts = tmp_path / "noisy.py", tmp_path / "whole", tmp_path / "parts"
    script.write_text(SOURCE)
    assert process(script, str(whole), "0") == "early_stop"
    assert process(script, str(parts), str(last)) == "requested"
    assert process(script, str(parts), "0", "latest") == "early_stop"

    expected, found = lines(whole), lines(parts)
    assert curves(found) == curves(expected)
    resumed = next(row for row in found if row["type"] == "resume")
    assert resumed["step"] == 6 * last
    ours, theirs = nt.read_manifest(parts), nt.read_manifest(whole)
    assert [(e["file"], e["step"]) for e in ours] == [(e["file"], e["step"]) for e in theirs]
    assert len(ours) >= 2
    for entry in ours:
        a, b = read_directory(parts / entry["file"]), read_directory(whole / entry["file"])
        assert a.arrays.keys() == b.arrays.keys()
        assert {n: v.tobytes() for n, v in a.arrays.items()} == {
            n: v.tobytes() for n, v in b.arrays.items()
        }
        for key in ("epoch", "step", "t", "seed", "horizon", "early_stop", "metrics"):
            assert a.meta[key] == b.meta[key], key
    newest = max(ours, key=lambda entry: entry["step"])
    stored = read_directory(parts / newest["file"])
    assert stored.meta["early_stop"]["bad_epochs"] == 4
    assert {"state/key", "slot/mu/hidden.w", "slot/t", "slot/attempt"} <= set(stored.arrays)
    assert stored.arrays["state/key"].dtype == np.uint32


def test_A20_a_key_in_the_state_goes_on_with_its_stream(tmp_path: Path) -> None:
    """Two epochs of six steps of two micro-batches split the key 24 times, whoever stops."""
    made = module(tmp_path / "noisy.py", SOURCE)
    key = jax.random.key(3)
    for _ in range(2 * 6 * 2):
        key = jax.random.split(key)[1]
    run: dict[str, Any] = {"run_dir": tmp_path / "run", "quiet": True, "logger": None}
    nt.train(made.Noisy(max_epochs=1), **run)
    resumed = nt.train(made.Noisy(max_epochs=2), resume="latest", **run)
    assert jax.random.key_data(resumed.state["key"]).tolist() == jax.random.key_data(key).tolist()
    assert resumed.state["key"].dtype == key.dtype
    assert resumed.state["seen"] == 24


# ---------------------------------------------------------------- one step, by four machines


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    made = module(tmp_path_factory.mktemp("oracle") / "noisy.py", SOURCE)
    setup = prepare(made.Noisy(), {}, {})
    return build_files(setup, Target(platform="cpu"))


@pytest.fixture(scope="module")
def step(built: Built) -> Case:
    programs = built.lowered.programs
    return Case(programs.final, programs.layouts, programs.emitted["train_step"])


def given(built: Built, step: Case) -> dict[str, Any]:
    """A state in the middle of a run, scalars and one step's batches, by IR name."""
    initial = read_tensors(built.files["weights/init.safetensors"])
    rng = np.random.default_rng(5)
    params = {n.removeprefix("param/"): v for n, v in initial.items() if n.startswith("param/")}
    state = {n.removeprefix("state/"): v for n, v in initial.items() if n.startswith("state/")}
    values: dict[str, Any] = {
        "p": params,
        "s": {leaf.path: state[leaf.path] for leaf in step.module.groups["state"].leaves},
        "mu": {n: 0.01 * rng.normal(size=v.shape).astype(np.float32) for n, v in params.items()},
        "nu": {n: 0.01 * rng.random(size=v.shape).astype(np.float32) for n, v in params.items()},
        "t": 6,
        "attempt": 2**32 + 8,
        "halted": False,
        "seed": np.array([0, 42], np.uint32),
        "x": rng.normal(size=(2, 4, 3)).astype(np.float32),
        "y": rng.normal(size=(2, 4, 2)).astype(np.float32),
        "m": rng.uniform(0.5, 1.5, (2, 4)).astype(np.float32),
        "shown.#0.#0": 1.0, "shown.#0.#1": 2.0, "shown.#1": 3,
        "scale": 0.5, "learning_rate": 0.05, "weight_decay": 0.1,
        "b1": 0.9, "b2": 0.999, "eps": 1e-3, "eps_root": 0.0,
    }  # fmt: skip
    values["p"] = {leaf.path: params[leaf.path] for leaf in step.module.groups["default"].leaves}
    return values


def exported(step: Case) -> Any:
    """The program as JAX runs any exported module: `jax.jit` of an `Exported`'s call."""
    entries = step.emitted
    shapes = [jax.ShapeDtypeStruct(a.shape, np_dtype(a.dtype)) for a in entries.args]
    results = [(r.shape, np_dtype(r.dtype)) for r in entries.results]

    def twin(*_: Any) -> tuple[Any, ...]:
        return tuple(jax.numpy.zeros(shape, dtype) for shape, dtype in results)

    plain = jax.export.export(jax.jit(twin, keep_unused=True))(*shapes)
    made = dataclasses.replace(plain, mlir_module_serialized=entries.artifact)
    return jax.jit(made.call, donate_argnums=tuple(a for a, _ in entries.donate))


def test_jax_runs_the_step_to_the_same_bits(built: Built, step: Case) -> None:
    """Three steps in a row, each fed what its own machine gave."""
    device = pjrt.devices("cpu")[0]
    ours = step.arguments(given(built, step))
    theirs = [x.copy() for x in ours]
    with jax.enable_x64(True):
        call = exported(step)
        for _ in range(3):
            results = [pjrt.read(x) for x in step.executable([pjrt.put(x, device) for x in ours])]
            expected = [np.asarray(x) for x in call(*(jax.numpy.asarray(x) for x in theirs))]
            assert [x.tobytes() for x in results] == [x.tobytes() for x in expected]
            for argument, result in step.emitted.donate:
                ours[argument], theirs[argument] = results[result], expected[result]
    assert step.values(results)["report"]["committed"]
    assert step.values(results)["t"] == 9


def imported(function: ImportedFunction, step: Case) -> Any:
    """An imported function on values of the reference: trees as dicts."""
    groups = step.module.groups

    def call(*values: Any) -> tuple[Any, ...]:
        names = [parameter.name for parameter in function.function.params]
        flat = [list(v.values()) if isinstance(v, dict) else v for v in values]
        found = iter(run_imported(function, dict(zip(names, flat, strict=True))))
        made: list[Any] = []
        for result in function.function.results:
            if isinstance(result.type, TreeType):
                made.append({leaf.path: next(found) for leaf in groups[result.type.group].leaves})
            else:
                made.append(next(found))
        return tuple(made)

    return call


def test_interpreter_numpy_and_xla_agree_on_the_step(built: Built, step: Case) -> None:
    values = given(built, step)
    ran, interpreted = step.run(values), step.interpret(values)
    functions = {n: imported(f, step) for n, f in built.lowered.imported.items()}
    final = step.module
    names = [item.value.name for item in final.programs["train_step"].inputs]
    outcome = reference.run_program(
        final, "train_step", {name: values[name] for name in names}, functions
    )
    assert ran["report"]["committed"]
    assert_close(ran, interpreted)
    assert_close({name: value for name, value in ran.items() if name != "report"}, outcome.assigned)
    assert_close(ran["report"], {n: np.asarray(v)[()] for n, v in outcome.report.items()})
    assert_same(ran["s"]["key"], interpreted["s"]["key"])
