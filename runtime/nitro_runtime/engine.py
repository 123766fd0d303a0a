"""The engine of a bundle: it trains, evaluates and predicts.

Setting up reads data and places buffers; it compiles nothing. Programs compile at first use, and
everything a training run is known to need before its first step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nitro_runtime import session
from nitro_runtime.bundle import Bundle
from nitro_runtime.errors import DataError, UsageError, near
from nitro_runtime.history import History
from nitro_runtime.host import HostHooks, host_code
from nitro_runtime.options import RunOptions
from nitro_runtime.places import running
from nitro_runtime.prediction import Predictor
from nitro_runtime.setup import set_up
from nitro_runtime.trees import ROOT, flatten
from nitro_runtime.verdict import Pass, pass_error


class Engine:
    """A bundle, an experiment's host half and run options, ready to be used.

    `host` may be `NoHost()`: predicting needs no experiment. Errors of setup are raised here.
    """

    def __init__(self, bundle: Bundle, host: HostHooks, options: RunOptions) -> None:
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.host = host
        self.options = options
        with running(host_code(host)):
            self._run = set_up(bundle, host, options)
        self._predictor = Predictor(self._run.machine, self._run.scalars)

    # ------------------------------------------------------------------------------ looking

    @property
    def notes(self) -> list[str]:
        """Lines for the report: the schedules as far as they were asked, then what was found."""
        schedules = self._run.scalars.schedules.values()
        return [*(schedule.describe() for schedule in schedules), *self._run.notes]

    def note(self, text: str) -> None:
        """Says `text` now, and keeps it for the report."""
        self._run.note(text)

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
        return str(self._run.directory.path)

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
        checked = {name: run.machine.device_array(name, v) for name, v in arrays.items()}
        for name, array in checked.items():
            run.machine.set_device_array(name, array)
        for name, value in scalars.items():
            run.scalars.set(name, value)
        for name, value in values.items():
            self.host.device_changed(name, value)

    # -------------------------------------------------------------------- evaluate, predict

    def evaluate(self, split: str = "val") -> dict[str, Any]:
        """The metrics of one pass over a split.

        E-DATA-065 for one that is not there, E-GUARD-001 with the metrics when a guard counted.
        """
        run = self._run
        with running(host_code(self.host)):
            made = run.evaluator.run(split, self._source(split), seed=run.seed)
        if made.counted:
            step = run.step or run.weights_step  # a warm start has made no step of its own
            raise pass_error(made.counted, Pass(split, step, run.epoch, made.values))
        return made.values

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
        if not self._run.trains:
            raise UsageError(
                66, "there is no train split to train on", where="train", help="give build_data"
            )
        session.train(self._run)
        return self


def _leaves(values: dict[str, Any]) -> dict[str, Any]:
    """Device leaves by name: a nested value's are `field.path`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        for path, leaf in flatten(value)[1].items():
            found[name if path == ROOT else f"{name}.{path}"] = leaf
    return found
