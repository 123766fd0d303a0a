"""Setting a run up: device, seed, buffers, schedules, and the record it goes on from.

Data is looked at and buffers are placed; nothing compiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle
from nitro_runtime.checkpoints import TopKCheckpointer
from nitro_runtime.compiling import compiler
from nitro_runtime.data.prefetch import unwrap
from nitro_runtime.data.source import order
from nitro_runtime.diagnostics import select
from nitro_runtime.dtypes import ir_dtype, spell
from nitro_runtime.errors import DataError
from nitro_runtime.evaluation import Evaluator
from nitro_runtime.history import History
from nitro_runtime.host import HostHooks
from nitro_runtime.logging import Loggers
from nitro_runtime.machine import INIT, INITIAL, TRAIN, Machine
from nitro_runtime.manifest import Manifest
from nitro_runtime.options import RunOptions
from nitro_runtime.progress import Display, display
from nitro_runtime.restore import Restored, check_graphconst, check_layout, find, find_weights
from nitro_runtime.run import Run, load_row
from nitro_runtime.run_dir import RunDirectory, new_run_id
from nitro_runtime.saving import device_record, loose, strict
from nitro_runtime.scalars import Scalars
from nitro_runtime.schedules import Schedule, resolve
from nitro_runtime.selftest import check_device, platform_name


def set_up(bundle: Bundle, host: HostHooks, options: RunOptions) -> Run:
    """The run of a bundle with an experiment's host half; raises what is wrong with any of it."""
    return _Setup(bundle, host, options).run()


def find_device(manifest: Manifest, backend: str | None) -> pjrt.Device:
    """The first device of `backend`, or of the default one; E-DEVICE-001 for one the bundle was
    not traced for."""
    devices = pjrt.devices(backend)
    check_device(manifest, platform_name(devices[0]), len(devices))
    return devices[0]


@dataclass
class _Setup:
    bundle: Bundle
    host: HostHooks
    options: RunOptions
    notes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.manifest = self.bundle.manifest
        self.display: Display = display(self.options.quiet)
        self.directory = RunDirectory(self.options.run_dir)
        self.trains = "train" in self.host.splits and TRAIN in self.manifest.programs
        self.weights_step = 0

    def note(self, text: str) -> None:
        """A line for the person now, and for the report."""
        self.notes.append(text)
        self.display.say(text)

    def run(self) -> Run:
        device = find_device(self.manifest, self.options.backend)
        selection = select(self.manifest, self.options.diagnostics)
        if self.trains:
            self.directory.probe()
        restored = self._find_record()
        seed = self._seed(restored)
        make = compiler(self.bundle, device, self.host, self.display.say)
        machine = Machine(self.bundle, device, self.host, make)
        machine.seed(seed)
        weights_from = self._load(machine, restored, seed)
        total = self._horizon()
        step = 0 if restored is None else int(restored.record.meta["step"])
        scalars = self._scalars(total, max(step, 1))
        run = Run(
            machine=machine,
            scalars=scalars,
            host=self.host,
            options=self.options,
            evaluator=Evaluator(machine, scalars, self.host, self.display.say),
            loggers=Loggers(self.host.logger, self.note),
            display=self.display,
            directory=self.directory,
            checkpointer=self.host.checkpointer,
            stopper=self.host.early_stop,
            seed=seed,
            total=total,
            run_id=new_run_id(),
            selection=selection,
            trains=self.trains,
            notes=self.notes,
            weights_from=weights_from,
            weights_step=self.weights_step,
            restored=restored,
        )
        if restored is not None:
            self._take_up(run, restored)
        self._report_sources()
        return run

    def _find_record(self) -> Restored | None:
        checkpointer = self.host.checkpointer
        path = self.directory.path
        if isinstance(checkpointer, TopKCheckpointer):
            checkpointer.bind(path, self.host.checkpoint_filename, self.note)
        elif checkpointer is not None:
            checkpointer.bind(path, self.host.checkpoint_filename)
        return find(self.options.resume, checkpointer, path, self.note)

    def _seed(self, restored: Restored | None) -> int:
        if restored is None:
            return self.options.seed
        stored = int(restored.record.meta["seed"])
        if stored != self.options.seed:
            self.note(f"resume: the stored seed {stored} is used, not {self.options.seed}")
        return stored

    def _initial(self, machine: Machine, seed: int) -> Mapping[str, np.ndarray]:
        """The values of step 0: those stored, or for another seed than theirs those of `init`."""
        stored = self.bundle.arrays(INITIAL)
        built = self.manifest.options.get("seed")
        if stored and (built is None or built.value == seed):
            return stored
        if INIT in self.manifest.programs:
            return machine.initial()
        assert built is not None, "a bundle without stored weights has the program init"
        self.note(
            f"seed {seed} decides data order and keys only: the initial values are those of the "
            f"build, made from seed {built.value}"
        )
        return stored

    def _load(self, machine: Machine, restored: Restored | None, seed: int) -> str | None:
        """Places parameters, slots and state; gives what a warm start took them from."""
        rows = machine.layout.rows()
        if restored is not None:
            check_graphconst(restored.record, self.manifest, restored.name)
            check_layout(restored.record, rows, weights_only=False, where=restored.name)
            machine.load(restored.record.arrays)
            return None
        if self.options.checkpoint is None:
            machine.load(self._initial(machine, seed))
            return None
        record, name = find_weights(self.options.checkpoint, self.directory.path)
        check_layout(record, rows, weights_only=True, where=name)
        weights = {k: v for k, v in record.arrays.items() if k.startswith(("param/", "state/"))}
        machine.load(weights)
        self.weights_step = int(record.meta["step"])
        return name

    def _horizon(self) -> int:
        """`min(max_epochs * (batches // accum), max_steps)`."""
        if not self.trains:
            return 0
        batches = len(unwrap(self.host.splits["train"]))
        accum = self.manifest.programs[TRAIN].dims.get("accum", 1)
        if batches % accum:
            low = batches - batches % accum
            legal = " or ".join(str(n) for n in (low, low + accum) if n)
            raise DataError(
                66,
                f"the train split has {batches} batches, not a multiple of accum {accum}",
                where="split train",
                help=f"the nearest legal counts are {legal}",
            )
        total = self.options.max_epochs * (batches // accum)
        limit = self.options.max_steps
        return total if limit is None else min(total, limit)

    def _scalars(self, total: int, first: int) -> Scalars:
        """The scalars at step `first`; each schedule is resolved with the horizon, once, or with
        the one that `schedule_total` pins."""
        entries = {s.name: s for p in self.manifest.programs.values() for s in p.scalars}
        schedules: dict[str, Schedule] = {
            name: resolve(
                name,
                value,
                self.options.schedule_total or total,
                dtype=entries[name].dtype if name in entries else "f32",
            )
            for name, value in self.host.schedules.items()
        }
        scalars = Scalars(list(entries.values()), self.host.values, schedules)
        scalars.advance(first)
        return scalars

    def _take_up(self, run: Run, restored: Restored) -> None:
        """Counters, history, stopper and loggers of a record."""
        meta = restored.record.meta
        run.step, run.t, run.epochs = int(meta["step"]), int(meta["t"]), int(meta["epoch"])
        run.history = History([load_row(row) for row in meta["metrics"]])
        run.last_checkpoint = (restored.name, run.step)
        if restored.forks:
            run.parent = {"run_id": meta["run_id"], "file": restored.name}
        else:
            run.run_id, run.parent = meta["run_id"], meta["parent"]
        self._take_up_stopper(run.stopper, meta.get("early_stop"))
        run.loggers.reattach(meta.get("logger"))
        if meta["horizon"] != run.total:
            self.note(f"resume: the horizon was {meta['horizon']} steps, it is {run.total}")
        self._say_changes(meta.get("devices") or {}, device_record(run))
        self._say_changes(
            meta.get("derived") or {}, strict(self.host.record().get("derived") or {})
        )
        for name, value in run.machine.device_values.items():
            stored = restored.record.arrays.get(f"device/{name}")
            if stored is not None and not np.array_equal(stored, value, equal_nan=True):
                self.note(f"resume: {name}, {spell(ir_dtype(value.dtype), value.shape)}, changed")

    def _say_changes(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Device and derived values: the run's win, a line each."""
        for name, value in new.items():
            if name in old and old[name] != value:
                self.note(f"resume: {name} {old[name]} -> {value}")

    def _take_up_stopper(self, stopper: Any, stored: Any) -> None:
        if stopper is None:
            return
        if stored is not None and hasattr(stopper, "load_state_dict"):
            stopper.load_state_dict(loose(stored))
        else:
            self.note("resume: the stopping rule keeps no memory, it starts afresh")

    def _report_sources(self) -> None:
        if self.trains:
            note = order(unwrap(self.host.splits["train"])).note
            if note is not None:
                self.note(f"train: {note}")
