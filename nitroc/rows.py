"""Row independence: whether a row's outputs depend on that row alone, found by running forward.

The same rows with other neighbours, at other places, and with filler must give outputs of equal
bits. The weights are the initial ones with noise: a layer that starts at zero would hide what is
before it. A forward that mixes rows is never filled or coalesced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from nitro_dialect.types import FLOATS
from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle
from nitro_runtime.data.schema import conform, look
from nitro_runtime.dtypes import ir_dtype
from nitro_runtime.host import HostHooks
from nitro_runtime.machine import INITIAL, Machine, batch_args, field_of
from nitro_runtime.scalars import Scalars
from nitro_runtime.selftest import fingerprint_text
from nitroc.bundle.assemble import Golden
from nitroc.frontend.setup import Setup

Arrays = dict[str, np.ndarray]

RTOL = 1e-5
"""How far outputs on another machine may be from the recorded ones."""


@dataclass(frozen=True)
class Probe:
    """independent: None when it was not tested. goldens: one recorded run per forward program."""

    independent: bool | None = None
    goldens: Mapping[str, Golden] = field(default_factory=dict[str, Golden])


def probe_rows(setup: Setup, bundle: Bundle, machine: Machine, host: HostHooks) -> Probe:
    """Runs every forward program on rows of a split of its width.

    goldens are of the initial weights.
    """
    initial = bundle.arrays(INITIAL)
    machine.load(initial)
    machine.seed(int(setup.options["seed"].value))
    runs: list[tuple[_Forward, Arrays]] = []
    goldens: dict[str, Golden] = {}
    for name, entry in bundle.manifest.programs.items():
        rows = _rows(setup, entry.dims["width"]) if entry.role == "forward" else None
        if rows is None:
            continue
        run = _Forward(machine, name, host)
        goldens[name] = Golden(run.inputs(rows), run(rows), RTOL, fingerprint_text(machine.device))
        runs.append((run, _told_apart(rows)))
    machine.load(_noisy(initial))
    independent = all(_independent(run.outputs, rows) for run, rows in runs)
    return Probe(independent if runs else None, goldens)


def _told_apart(rows: Arrays) -> Arrays:
    """The rows, floats with noise where all rows are one: equal ones hide that they are mixed."""
    if not _alike(rows):
        return rows
    rng = np.random.default_rng(0)
    return {
        name: (array + rng.normal(size=array.shape)).astype(array.dtype)
        if ir_dtype(array.dtype) in FLOATS
        else array
        for name, array in rows.items()
    }


def _alike(rows: Arrays) -> bool:
    return all((array == array[:1]).all() for array in rows.values())


def _noisy(initial: Mapping[str, np.ndarray]) -> Arrays:
    """The weights with every parameter moved by a normal deviate, the same at each build."""
    rng = np.random.default_rng(0)
    return {
        name: (array + rng.normal(size=array.shape)).astype(array.dtype)
        if name.startswith("param/")
        else array
        for name, array in initial.items()
    }


class _Forward:
    """One forward program with everything but its rows in place."""

    def __init__(self, machine: Machine, name: str, host: HostHooks) -> None:
        self._machine = machine
        self._program = machine.program(name)
        entry = self._program.entry
        scalars = Scalars(entry.scalars, host.values, {})
        self._args = batch_args(entry)
        self._fixed: Arrays = {}
        for arg in entry.args:
            if arg.role == "scalars":
                self._fixed[arg.name] = scalars.pack(entry.scalars, arg.shape)
            elif arg.role in ("split", "index"):
                self._fixed[arg.name] = np.zeros(arg.shape, np.int32)
            elif arg.role == "seed":
                self._fixed[arg.name] = pjrt.read(machine.cells[arg.name])

    def inputs(self, rows: Arrays) -> Arrays:
        """By argument name, what is no weight or constant."""
        return self._fixed | {arg.name: rows[field_of(arg)] for arg in self._args}

    def outputs(self, rows: Arrays) -> Arrays:
        """The outputs alone, which have a row each."""
        outputs = [r.name for r in self._program.entry.results if r.role == "outputs"]
        results = self(rows)
        return {name: results[name] for name in outputs}

    def __call__(self, rows: Arrays) -> Arrays:
        """The results by name: the outputs, and the report where there are marks."""
        entry = self._program.entry
        known = {arg.name: arg for arg in entry.args}
        given = {
            name: self._machine.put(value, known[name]) for name, value in self.inputs(rows).items()
        }
        results = self._machine.call(self._program, given)
        return {r.name: pjrt.read(x) for r, x in zip(entry.results, results, strict=True)}


def _rows(setup: Setup, width: int) -> Arrays | None:
    """A batch of exactly `width` rows: the first one of a split of that width, or part of it."""
    seed = int(setup.options["seed"].value)
    for split, schema in setup.schema.items():
        if schema.width >= width:
            first = look(setup.splits[split], split, seed).first
            arrays = conform(first, schema, split, 0)
            return {name: array[:width] for name, array in arrays.items()}
    return None


def _independent(run: Callable[[Arrays], Arrays], rows: Arrays) -> bool:
    """Other places (rotated), other neighbours (halves swapped for a copy), and filler."""
    width = len(next(iter(rows.values()), ()))
    if width <= 1:
        return True
    if _alike(rows):  # whole numbers, which no noise tells apart: nothing can be found out
        return False
    outputs = run(rows)
    rotated = run({name: np.roll(array, 1, axis=0) for name, array in rows.items()})
    if not _equal(rotated, {name: np.roll(x, 1, axis=0) for name, x in outputs.items()}):
        return False
    for real in {1, width // 2, width - 1}:
        filler = [*range(real), *[real - 1] * (width - real)]
        filled = run({name: array[filler] for name, array in rows.items()})
        if not _equal(
            {n: x[:real] for n, x in filled.items()}, {n: x[:real] for n, x in outputs.items()}
        ):
            return False
    return True


def _equal(a: Arrays, b: Arrays) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in a)
