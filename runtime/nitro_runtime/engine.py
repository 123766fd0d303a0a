"""The engine of a bundle: it trains, evaluates and predicts, and keeps what that needs.

Setting up reads data and places buffers; it compiles nothing. Programs compile at first use, and
everything a training run is known to need before its first step.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from nitro_runtime import cache, pjrt
from nitro_runtime.artifact import location_free_text
from nitro_runtime.bundle import Bundle
from nitro_runtime.checkpoints import TopKCheckpointer
from nitro_runtime.data.prefetch import unwrap
from nitro_runtime.data.source import order, probe
from nitro_runtime.errors import DataError, DeviceError, GuardError, NitroError, UsageError, near
from nitro_runtime.evaluation import Evaluator
from nitro_runtime.history import History
from nitro_runtime.host import HostHooks
from nitro_runtime.ingredients import ingredients
from nitro_runtime.logging import Loggers
from nitro_runtime.loop import Loop
from nitro_runtime.machine import INITIAL, TRAIN, Machine
from nitro_runtime.manifest import ProgramEntry
from nitro_runtime.options import RunOptions
from nitro_runtime.prediction import Predictor
from nitro_runtime.progress import display
from nitro_runtime.restore import (
    Restored,
    check_graphconst,
    check_layout,
    find,
    find_weights,
    nothing_left,
)
from nitro_runtime.run import Run, load_row
from nitro_runtime.run_dir import RunDirectory, new_run_id
from nitro_runtime.scalars import Scalars
from nitro_runtime.schedules import Schedule, resolve
from nitro_runtime.signals import TERMINATED, Interrupts
from nitro_runtime.snapshot import Snapshot
from nitro_runtime.stopping import check_metric
from nitro_runtime.training import TrainProgram
from nitro_runtime.trees import ROOT, flatten

FAILED = ("guard", "diverged", "error")


class Engine:
    """A bundle, an experiment's host half and run options, ready to be used.

    `host` may be `NoHost()`: predicting needs no experiment. Errors of setup are raised here.
    """

    def __init__(self, bundle: Bundle, host: HostHooks, options: RunOptions) -> None:
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.host = host
        self.options = options
        self.notes: list[str] = []
        self._display = display(options.quiet)
        self._device = self._find_device()
        self._directory = RunDirectory(options.run_dir)
        self._trains = "train" in host.splits and TRAIN in self.manifest.programs
        if self._trains:
            self._directory.probe()
        self._checkpointer: Any = host.checkpointer
        if self._checkpointer is not None:
            self._bind_checkpointer()
        restored = find(options.resume, self._checkpointer, self._directory.path, self._note)
        self._restored = restored
        self._run = self._set_up(restored)
        self._predictor = Predictor(self._run.machine, self._run.scalars)

    # -------------------------------------------------------------------------------- setup

    def _find_device(self) -> pjrt.Device:
        wanted = self.options.backend
        platforms = self.manifest.requires.platforms
        device = pjrt.devices(wanted)[0]
        kinds = {device.platform, getattr(device.client, "platform", device.platform)}
        if device.platform == "gpu":
            kinds |= {"cuda", "rocm", "gpu"}
        if platforms and not kinds & set(platforms):
            raise DeviceError(
                1,
                f"the bundle is for {', '.join(platforms)}, the device is {device.platform}",
                where="option backend",
                help="build again with --platform, or run on one of those",
            )
        return device

    def _note(self, text: str) -> None:
        """A line for the person now, and for the report."""
        self.notes.append(text)
        self._display.say(text)

    def _bind_checkpointer(self) -> None:
        bind = self._checkpointer.bind
        if isinstance(self._checkpointer, TopKCheckpointer):
            bind(self._directory.path, self.host.checkpoint_filename, self._note)
        else:
            bind(self._directory.path, self.host.checkpoint_filename)

    def _set_up(self, restored: Restored | None) -> Run:
        host, options = self.host, self.options
        record = None if restored is None else restored.record
        seed = self._seed(record)
        machine = Machine(self.bundle, self._device, host, self._compile)
        machine.seed(seed)
        weights_from = self._load(machine, restored)
        total = self._horizon()
        step = 0 if record is None else int(record.meta["step"])
        scalars = self._scalars(total, max(step, 1))
        run = Run(
            machine=machine,
            scalars=scalars,
            host=host,
            options=options,
            evaluator=Evaluator(machine, scalars, host, self._display.say),
            loggers=Loggers(host.logger, self._note),
            display=self._display,
            directory=self._directory,
            checkpointer=self._checkpointer,
            stopper=host.early_stop,
            seed=seed,
            total=total,
            run_id=new_run_id(),
            weights_from=weights_from,
        )
        if restored is not None:
            self._take_up(run, restored)
        self._report_sources()
        return run

    def _seed(self, record: Snapshot | None) -> int:
        if record is None:
            return self.options.seed
        stored = int(record.meta["seed"])
        if stored != self.options.seed:
            self._note(f"resume: the stored seed {stored} is used, not {self.options.seed}")
        return stored

    def _load(self, machine: Machine, restored: Restored | None) -> str | None:
        """Places parameters, slots and state; gives what a warm start took them from."""
        arrays = dict(self.bundle.arrays(INITIAL))
        rows = machine.layout.rows()
        weights_from = None
        if restored is not None:
            check_graphconst(restored.record, self.manifest, restored.name)
            check_layout(restored.record, rows, weights_only=False, where=restored.name)
            arrays = dict(restored.record.arrays)
        elif self.options.checkpoint is not None:
            record, weights_from = find_weights(self.options.checkpoint, self._directory.path)
            check_layout(record, rows, weights_only=True, where=weights_from)
            arrays = {
                name: array
                for name, array in record.arrays.items()
                if name.startswith(("param/", "state/"))
            }
        machine.load(arrays)
        return weights_from

    def _horizon(self) -> int:
        """`min(max_epochs * (batches // accum), max_steps)`."""
        if not self._trains:
            return 0
        source = unwrap(self.host.splits["train"])
        batches = len(source)
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
        entries = {
            scalar.name: scalar
            for program in self.manifest.programs.values()
            for scalar in program.scalars
        }
        handed = self.options.schedule_total or total
        schedules: dict[str, Schedule] = {
            name: resolve(
                name,
                value,
                handed,
                dtype=entries[name].dtype if name in entries else "f32",
                horizon=total,
            )
            for name, value in self.host.schedules.items()
        }
        scalars = Scalars(list(entries.values()), self.host.values, schedules)
        scalars.advance(first)
        self.notes += [schedule.describe() for schedule in schedules.values()]
        return scalars

    def _take_up(self, run: Run, restored: Restored) -> None:
        """Counters, history, stopper and loggers of a record."""
        meta = restored.record.meta
        run.step, run.t, run.epochs = int(meta["step"]), int(meta["t"]), int(meta["epoch"])
        run.history = History([load_row(row) for row in meta["metrics"]])
        if restored.forks:
            run.parent = {"run_id": meta["run_id"], "file": restored.name}
        else:
            run.run_id, run.parent = meta["run_id"], meta["parent"]
            run.last_checkpoint = (restored.name, run.step)
        self._take_up_stopper(run, meta.get("early_stop"))
        run.loggers.reattach(meta.get("logger"))
        if meta["horizon"] != run.total:
            self._note(f"resume: the horizon was {meta['horizon']} steps, it is {run.total}")

    def _take_up_stopper(self, run: Run, stored: Any) -> None:
        if run.stopper is None:
            return
        if stored is not None and hasattr(run.stopper, "load_state_dict"):
            run.stopper.load_state_dict(stored)
        else:
            self._note("resume: the stopping rule keeps no memory, it starts afresh")

    def _report_sources(self) -> None:
        for split, source in self.host.splits.items():
            note = order(unwrap(source)).note
            if note is not None and split == "train":
                self._note(f"{split}: {note}")

    def _compile(self, name: str, entry: ProgramEntry) -> pjrt.Executable:
        artifact = self.bundle.artifact(name)
        program = cache.Program(
            location_free_text(artifact),
            artifact,
            ingredients(self.manifest, name, entry, self.host.describe()),
            entry.args,
            entry.results,
            entry.donate,
        )
        return cache.CACHE.get(program, self._device, say=self._display.say)

    # ------------------------------------------------------------------------------ looking

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the parameters by key path."""
        return self._arrays("param")

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the model state by key path."""
        return self._arrays("state")

    def _arrays(self, role: str) -> dict[str, np.ndarray]:
        found = self._run.machine.arrays(role)
        return {name.removeprefix(f"{role}/"): array for name, array in found.items()}

    @property
    def step(self) -> int:
        """Optimizer steps tried."""
        return self._run.step

    @property
    def t(self) -> int:
        """Committed updates."""
        return self._run.t

    @property
    def epoch(self) -> int:
        """The epoch under way, else the last finished one."""
        return self._run.epoch

    @property
    def stop_reason(self) -> str | None:
        """Why training ended; None before."""
        return self._run.stop_reason

    @property
    def history(self) -> History:
        """One row per epoch."""
        return self._run.history

    @property
    def run_dir(self) -> str:
        """Where the run writes."""
        return str(self._directory.path)

    @property
    def run_id(self) -> str:
        """This run's id."""
        return self._run.run_id

    @property
    def logger(self) -> Any:
        """The logger, or the list of them, that was given."""
        return self.host.logger

    @property
    def checkpoint_source(self) -> str | None:
        """What `checkpoint=` took the weights from."""
        return self._run.weights_from

    def device_value(self, name: str) -> Any:
        """The current value of a Device leaf; E-USAGE-063 for another name."""
        run = self._run
        if name in run.scalars.device_names():
            return run.scalars.values[name]
        if name in run.machine.device_values:
            return np.array(run.machine.device_values[name])
        names = [*run.scalars.device_names(), *run.machine.device_values]
        raise UsageError(
            63,
            f"no Device field {name!r}{near(name, names)}",
            help=f"those there are: {', '.join(names) or 'none'}",
        )

    def set_device(self, **values: Any) -> None:
        """Changes Device values; nothing compiles. E-USAGE-063 to -065, with no value changed."""
        run = self._run
        values = _leaves(values)
        arrays = {n: v for n, v in values.items() if n in run.machine.device_values}
        scalars = {n: v for n, v in values.items() if n not in arrays}
        for name, value in scalars.items():
            run.scalars.check(name, value)
        for name, value in arrays.items():
            run.machine.set_device_array(name, value)
        for name, value in scalars.items():
            run.scalars.set(name, value)
        for name, value in values.items():
            self.host.device_changed(name, value)

    # -------------------------------------------------------------------- evaluate, predict

    def evaluate(self, split: str = "val") -> dict[str, Any]:
        """The metrics of one pass over a split; E-DATA-065 for one that is not there."""
        run = self._run
        return run.evaluator.run(split, self._source(split), seed=run.seed)

    def _source(self, split: str) -> Any:
        if split not in self.host.splits:
            names = list(self.host.splits)
            raise DataError(
                65,
                f"no split {split!r}{near(split, names)}",
                where="evaluate",
                help=f"the splits are: {', '.join(names) or 'none'}",
            )
        return self.host.splits[split]

    def predict(self, data: Any) -> Any:
        """Outputs of a batch, as numpy; of an iterable of batches, a lazy iterator of them."""
        return self._predictor(data)

    # -------------------------------------------------------------------------------- train

    def request_stop(self) -> None:
        """Ends training after the dispatches in flight; safe from any thread."""
        self._run.requested = True

    def train(self) -> Engine:
        """Trains until something stops it; `stop_reason` says what. Failures are raised.

        After SIGTERM it raises SystemExit(143); after a second Ctrl-C KeyboardInterrupt.
        """
        run = self._run
        if not self._trains:
            raise UsageError(
                66, "there is no train split to train on", where="train", help="give build_data"
            )
        why = self._nothing_to_do()
        if why is not None:
            self._note(f"nothing to train: {why}")
            return self
        with Interrupts() as interrupts:
            self._directory.acquire(self._note)
            try:
                self._train(interrupts)
            finally:
                self._directory.release()
        if interrupts.terminated and run.stop_reason == "interrupted":
            sys.exit(TERMINATED)
        return self

    def _nothing_to_do(self) -> str | None:
        run, options = self._run, self.options
        if run.stop_reason in FAILED:
            return f"the run ended as {run.stop_reason} at step {run.step}"
        if run.stop_reason in ("completed", "early_stop", "max_steps"):
            return f"the run ended as {run.stop_reason} at epoch {run.epoch}, step {run.step}"
        if self._restored is None or run.stop_reason is not None:
            return None
        record = self._restored.record
        why = nothing_left(record, options.max_epochs, options.max_steps, run.stopper)
        if why is not None:
            run.stop_reason = record.meta["stop_reason"]
        return why

    def _train(self, interrupts: Interrupts) -> None:
        run = self._run
        run.requested, run.started = False, time.monotonic()
        if isinstance(run.checkpointer, TopKCheckpointer):
            run.checkpointer.recover()
        self._directory.adopt(self.bundle)
        self._directory.status(
            state="running", stop_reason=None, run_id=run.run_id, step=run.step, epoch=run.epoch
        )
        self._open_loggers()
        reason, error = "error", None
        try:
            self._check_metrics()
            reason = Loop(run, self._ready(), interrupts).train()
        except GuardError as failed:
            reason, error = "diverged", failed
            raise
        except KeyboardInterrupt:
            reason = "interrupted"
            raise
        except Exception as failed:
            error = failed
            raise
        finally:
            self._finish(reason, error)

    def _open_loggers(self) -> None:
        run = self._run
        run.loggers.bind(self._directory.path)
        if self._restored is None or self._restored.forks:
            run.loggers.params(run.params())
        if self._restored is not None:
            run.loggers.other(
                "resume", {"run_id": run.run_id, "step": run.step, "epoch": run.epochs}
            )
        if self.options.tags:
            run.loggers.tags(self.options.tags)
        report = self.host.report()
        if report:
            run.loggers.other("binding_report", report)

    def _check_metrics(self) -> None:
        """E-USAGE-067 for a ranking or stopping metric that nobody emits, before step 1."""
        run = self._run
        stopper, checkpointer = run.stopper, run.checkpointer
        wanted = {
            "checkpointer": getattr(checkpointer, "metric", None),
            "early_stop": getattr(stopper, "metric", None),
        }
        if "val" not in self.host.splits:
            if wanted["checkpointer"] == "val_loss" and getattr(checkpointer, "keep_latest", True):
                del wanted["checkpointer"]
            emitted: list[str] = []
        else:
            emitted = run.evaluator.device_metrics("val")
            if any(name not in emitted for name in wanted.values() if name is not None):
                emitted = self._trial()
        for option, name in wanted.items():
            check_metric(name, emitted, option)

    def _trial(self) -> list[str]:
        """The names that one batch of validation emits; its values are dropped."""
        run = self._run
        return list(run.evaluator.run("val", self.host.splits["val"], seed=run.seed, limit=1))

    def _ready(self) -> TrainProgram:
        """Compiles everything this run is known to need, said in one line."""
        run, machine = self._run, self._run.machine
        before = set(machine.compiled)
        cached = cache.cache_stats()["hits"]
        needed = [TRAIN]
        if "val" in self.host.splits:
            source = unwrap(self.host.splits["val"])
            last = probe(source, "val", run.seed).last_rows
            needed += run.evaluator.programs("val", source, [] if last is None else [last])
        for name in needed:
            machine.program(name)
        made = [name for name in machine.compiled if name not in before]
        if made:
            hits = cache.cache_stats()["hits"] - cached
            self._display.say(
                f"{len(made)} programs ready in {machine.compile_seconds:.1f} s "
                f"({hits} from the cache): {', '.join(made)}"
            )
        return TrainProgram(machine, run.scalars)

    def _finish(self, reason: str, error: BaseException | None) -> None:
        """Says everywhere how the run ended; what fails here hides nothing that was raised."""
        run = self._run
        run.stop_reason = reason
        run.display.stop()
        text = None if error is None else f"failed: {_one_line(error)}"
        try:
            if run.checkpointer is not None:
                self._close_checkpointer(reason)
        finally:
            run.loggers.finish(reason, text)
            self._directory.status(
                state="failed" if reason in FAILED else "done",
                stop_reason=reason,
                step=run.step,
                t=run.t,
                epoch=run.epoch,
                error=text,
            )

    def _close_checkpointer(self, reason: str) -> None:
        finish = getattr(self._run.checkpointer, "finish", None)
        if finish is not None:
            finish(self._run.run_id, reason)


def _leaves(values: dict[str, Any]) -> dict[str, Any]:
    """Device leaves by name: a nested value's are `field.path`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        for path, leaf in flatten(value)[1].items():
            found[name if path == ROOT else f"{name}.{path}"] = leaf
    return found


def _one_line(error: BaseException) -> str:
    if isinstance(error, NitroError):
        return f"{error.code}: {error.what}"
    return f"{type(error).__name__}: {error}"
