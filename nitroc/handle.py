"""`Nitro`: an experiment or a bundle, ready to train, evaluate and predict."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from nitro_runtime import pjrt
from nitro_runtime.bundle import Bundle
from nitro_runtime.engine import Engine
from nitro_runtime.errors import UsageError
from nitro_runtime.host import HostHooks
from nitro_runtime.options import RunOptions
from nitro_runtime.selftest import platform_name
from nitro_runtime.trees import Attr, IntKey, Key, decode_path
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.options import run_options
from nitroc.frontend.settings import preset_values, split_keywords
from nitroc.frontend.setup import Setup, prepare, route_prediction, with_model
from nitroc.hosting import ExperimentHost


class Nitro:
    """A handle. Making one runs setup only: nothing compiles until something is used.

        nitro = nt.Nitro(Digits(width=64), max_epochs=5)
        nitro = nt.Nitro(Digits, "small", width=64, max_epochs=5)     # a preset, then keywords

    Options are the run options, `quiet` and `backend`; `preset=` beside an instance is a name for
    the records only. Errors of setup are raised here.
    """

    def __init__(
        self,
        experiment: Experiment | type[Experiment],
        preset: str | None = None,
        /,
        *,
        quiet: bool = False,
        backend: str | None = None,
        **options: Any,
    ) -> None:
        experiment, options = _instance(experiment, preset, options)
        self._setup: Setup | None = prepare(
            experiment, options, {}, need_data=options.get("data") is None
        )
        self._quiet = quiet
        self._backend = backend
        self._host: HostHooks = ExperimentHost(self._setup)
        self._engine: Engine | None = None
        self._first: Any = None
        if options.get("resume") or options.get("checkpoint"):
            self._made()

    @classmethod
    def of_bundle(
        cls,
        bundle: Bundle,
        host: HostHooks,
        options: RunOptions,
        setup: Setup | None = None,
        *,
        notes: Iterable[str] = (),
    ) -> Nitro:
        """The handle of an opened bundle; `setup` is None where no experiment is imported.

        notes: lines for the person and for the report.
        """
        handle = cls.__new__(cls)
        handle._setup = setup
        handle._quiet = options.quiet
        handle._backend = options.backend
        handle._host = host
        handle._first = None
        handle._engine = Engine(bundle, host, options)
        for line in notes:
            handle._engine.note(line)
        return handle

    def _made(self) -> Engine:
        """The engine over the bundle in memory, lowered at first use."""
        if self._engine is None:
            assert self._setup is not None, "a handle of a bundle has its engine"
            # the whole compiler, which a bundle that was built does without
            from nitroc.building import build_files
            from nitroc.lowering import Target

            device = pjrt.devices(self._backend)[0]
            target = Target(platform=platform_name(device))
            setup = self._setup
            if self._first is not None:  # whether its rows mix is found by running forward on them
                setup = replace(setup, splits={"train": [self._first]})
            built = build_files(setup, target)
            bundle = Bundle.from_files(built.files, trusted=True)
            options = run_options(
                self._setup.experiment,
                self._setup.options,
                quiet=self._quiet,
                backend=self._backend,
            )
            self._engine = Engine(bundle, self._host, options)
        return self._engine

    # ---------------------------------------------------------------------------------- use

    def train(self) -> Nitro:
        """Trains until a limit, a stopper or a failure ends it; returns the handle.

        GuardError, DataError and whatever a hook raises surface as themselves. A second call
        returns at once, saying why.
        """
        if self._setup is not None and not self._setup.splits:
            raise UsageError(
                66, "there is no train split to train on", where="train", help="give build_data"
            )
        self._made().train()
        return self

    def evaluate(self, split: str = "test") -> dict[str, Any]:
        """The metrics of one pass over `split`."""
        return self._made().evaluate(split)

    def validate(self) -> dict[str, Any]:
        """`evaluate("val")`."""
        return self.evaluate("val")

    def predict(self, data: Any) -> Any:
        """`forward`'s outputs for a batch (a dict of arrays, any number of rows), as numpy.

        Of an iterable of batches, a lazy iterator of outputs. No labels are needed.
        """
        if self._engine is None and self._setup is not None and not self._setup.schema:
            data = self._route(data)
        return self._made().predict(data)

    def _route(self, data: Any) -> Any:
        """Without data, routing is resolved against the first batch to predict on."""
        assert self._setup is not None
        first, rest = data, data
        if not isinstance(data, Mapping) and isinstance(data, Iterable):
            batches: Iterator[Any] = iter(cast("Iterable[Any]", data))
            first = next(batches, {})
            rest = itertools.chain([first], batches)
        self._setup = route_prediction(self._setup, first)
        self._first = first
        return rest

    def set_device(self, **values: Any) -> None:
        """Changes Device fields; nothing compiles. The experiment itself stays as it is."""
        self._made().set_device(**values)

    def device_value(self, name: str) -> Any:
        """The current value of a Device field."""
        return self._made().device_value(name)

    def request_stop(self) -> None:
        """Ends training after the dispatches in flight; safe from any thread."""
        self._made().request_stop()

    # -------------------------------------------------------------------------------- state

    @property
    def experiment(self) -> Experiment | None:
        """The experiment, resolved; None for a bundle that is run without its Python."""
        return None if self._setup is None else self._setup.experiment

    @property
    def parameters(self) -> Any:
        """Copies of the parameters, in the tree that `build_model` returned."""
        return self._tree("param")

    @property
    def state(self) -> Any:
        """Copies of the model state, in the tree that `build_model` returned."""
        return self._tree("state")

    def _tree(self, role: str) -> Any:
        groups = None
        if self._setup is not None:
            self._setup = with_model(self._setup)
            groups = self._setup.groups
        if self._engine is None:
            assert groups is not None, "a handle of a bundle has its engine"
            prefix = f"{role}/"
            found = groups.initial.items()
            leaves = {k.removeprefix(prefix): v.copy() for k, v in found if k.startswith(prefix)}
        else:
            leaves = self._engine.parameters if role == "param" else self._engine.state
        if groups is None:
            return nested(leaves)
        group = groups.params if role == "param" else groups.state
        build = groups.params_tree if role == "param" else groups.state_tree
        return build([leaves[leaf.path] for leaf in group.leaves])

    @property
    def step(self) -> int:
        """Optimizer steps tried."""
        return 0 if self._engine is None else self._engine.step

    @property
    def epoch(self) -> int:
        """The epoch under way, else the last finished one; 0 before the first."""
        return 0 if self._engine is None else self._engine.epoch

    @property
    def stop_reason(self) -> str | None:
        """Why training ended; None before."""
        return None if self._engine is None else self._engine.stop_reason

    @property
    def history(self) -> Any:
        """One row per epoch: `epoch`, `step`, `loss` and every metric."""
        return [] if self._engine is None else self._engine.history

    @property
    def run_dir(self) -> str:
        """Where the run writes."""
        return self._made().run_dir

    @property
    def run_id(self) -> str:
        """This run's id."""
        return self._made().run_id

    @property
    def logger(self) -> Any:
        """The logger, or the list of them, that was given."""
        return self._host.logger

    @property
    def checkpoint_source(self) -> str | None:
        """What `checkpoint=` took the weights from."""
        return None if self._engine is None else self._engine.checkpoint_source

    def binding_report(self) -> str:
        """Every configured value: where it bound, and what decided it."""
        notes = [] if self._engine is None else self._engine.notes
        lines = [self._host.report(), *(["run:", *(f"  {n}" for n in notes)] if notes else [])]
        return "\n".join(line for line in lines if line)

    def __repr__(self) -> str:
        return self.binding_report()


def _instance(
    experiment: Experiment | type[Experiment], preset: str | None, options: dict[str, Any]
) -> tuple[Experiment, dict[str, Any]]:
    if not isinstance(experiment, type):
        if preset is None:
            return experiment, options
        raise UsageError(
            35,
            "a preset by position goes with a class, and this is an instance",
            help='Nitro(Cls, "name", ...), or Nitro(from_preset(Cls, "name"))',
        )
    if preset is None and options.get("preset") is not None:
        preset, options = options["preset"], {n: v for n, v in options.items() if n != "preset"}
    if preset is None:
        given, options = split_keywords(experiment, options)
        return experiment(**given), options
    values = preset_values(experiment, preset)
    given, options = split_keywords(experiment, options)
    return experiment(**{**values, **given}), {**options, "preset": preset}


def nested(leaves: Mapping[str, np.ndarray]) -> Any:
    """Leaves by encoded path as dicts and lists: what a bundle knows of the trees."""
    root: dict[Key, Any] = {}
    for text, leaf in leaves.items():
        path = decode_path(text)
        if not path:
            return leaf
        place = root
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = leaf
    return _plain(root)


def _plain(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    items = cast("dict[Key, Any]", node)
    if items and all(isinstance(key, int) for key in items):
        return [_plain(items[key]) for key in sorted(cast("dict[int, Any]", items))]
    return {_name(key): _plain(value) for key, value in items.items()}


def _name(key: Key) -> str | int:
    if isinstance(key, Attr):
        return key.name
    return key.value if isinstance(key, IntKey) else key
