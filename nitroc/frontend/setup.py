"""Setup: an experiment and its options become everything that tracing and running need.

In this order: options, data, derived values, GraphConst content, Device values, `build_model`,
groups, schema probe and routing, source checks, optimizer and schedules, report. Nothing compiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from nitro_dialect.ir import Group
from nitro_runtime import pjrt
from nitro_runtime.data.schema import Look, Schema, look
from nitro_runtime.data.source import check_batch
from nitro_runtime.errors import DataError
from nitro_runtime.places import Found, remembering
from nitroc.errors import HookError, OptError
from nitroc.frontend.batches import (
    BEFORE_OUTPUTS,
    Residency,
    Routing,
    check_split,
    route_batch,
    route_splits,
)
from nitroc.frontend.binding import fill_report
from nitroc.frontend.device import DeviceLeaf, DeviceValues, checked_constants, device_values
from nitroc.frontend.experiment import Experiment, graphconst_fields, host_fields, with_values
from nitroc.frontend.groups import Groups, make_groups
from nitroc.frontend.hooks import call_hook, check_hooks, has_hook, hook_location, is_traced
from nitroc.frontend.model import build_model, leaf_hooks
from nitroc.frontend.names import did_you_mean
from nitroc.frontend.optimizer import OptimizerConfig, read_optimizer, read_rule
from nitroc.frontend.options import OPTIONS, Resolved, resolve
from nitroc.frontend.report import BindingReport
from nitroc.frontend.routing import Route, plain_routes
from nitroc.frontend.schedules import ScheduleEntry, read_schedules

PROBED = ("train", "val")
"""Splits whose batches are looked at during setup; another one when it is first used."""


@dataclass(frozen=True)
class Setup:
    """An experiment, resolved.

    * `experiment`: with resolved options, derived values and converted Device and GraphConst ones.
    * `schema` by split; its fields are those that programs take. Empty without data.
    * `made`: shapes and dtypes of what `prepare` makes, by field name.
    * `routing` of every hook that is there; `residency` of `metrics` and `train_metrics`.
    * `device` leaves in order; `device_fields` rebuilds nested Device values from leaves.
    * `horizon`: optimizer steps of the run, what schedule factories are called with.
    * `groups`: the leaves of params and state, which of them decay, and their first values. Those
      of a bundle come without the trees; `with_model` calls `build_model` for them, and `model` is
      None until then.
    * `dropped`: diagnostics of host hooks, which never run.
    """

    experiment: Experiment
    options: dict[str, Resolved]
    splits: dict[str, Any]
    derived: dict[str, Any]
    graphconst: dict[str, Any]
    host: dict[str, Any]
    device: dict[str, DeviceLeaf]
    device_fields: DeviceValues
    model: Any
    groups: Groups
    schema: dict[str, Schema]
    made: dict[str, Any]
    routing: dict[str, Route]
    residency: dict[str, Residency]
    optimizer: OptimizerConfig
    schedules: dict[str, ScheduleEntry]
    horizon: int
    report: BindingReport
    dropped: tuple[Found, ...] = ()

    @property
    def traced_init(self) -> bool:
        """Whether `build_model` becomes the program `init`."""
        return is_traced(self.experiment, "build_model")


def prepare(
    experiment: Experiment,
    keywords: Mapping[str, Any],
    recorded: Mapping[str, Any],
    *,
    need_data: bool = True,
    derived: Mapping[str, Any] | None = None,
    groups: Groups | None = None,
) -> Setup:
    """Sets an experiment up.

    `keywords` are run options given by name, `recorded` those a bundle or a run to resume holds;
    `derived` and `groups`, when given, are recorded values that stand for calling `derive` and
    `build_model`. Without `need_data` a missing `build_data` is no error. Exceptions of hooks
    surface as themselves, with a note of the hook.
    """
    with remembering() as dropped:
        setup = _prepared(experiment, keywords, recorded, need_data, derived, groups)
    return replace(setup, dropped=tuple(dropped))


def _prepared(
    experiment: Experiment,
    keywords: Mapping[str, Any],
    recorded: Mapping[str, Any],
    need_data: bool,
    derived: Mapping[str, Any] | None,
    groups: Groups | None,
) -> Setup:
    options = resolve(experiment, keywords, recorded)
    experiment = _with_options(experiment, options)
    given = options["data"].value is not None
    check_hooks(experiment, need_data=need_data, data_given=given)
    splits = _splits(experiment, options)
    made = _derived(experiment, splits, derived)
    report = BindingReport()
    explicit = experiment
    experiment = checked_constants(with_values(experiment, made))
    values = device_values(experiment)
    experiment = with_values(experiment, values.host)
    pjrt.devices()  # a machine where no backend starts is named before a hook meets it
    seed = int(options["seed"].value)
    model = None
    if groups is None:
        model, params, state = build_model(experiment, values, seed)
        where = hook_location(experiment, "build_model")
        groups = make_groups(params, state, leaf_hooks(experiment, params), where)
    looks = {name: look(splits[name], name, seed) for name in PROBED if name in splits}
    routing = route_splits(experiment, values, looks)
    for name, seen in looks.items():
        _check_source(name, seen, routing.schema[name], options)
    scalars = [leaf.field for leaf in values.leaves.values() if leaf.scalar]
    arrays = [name for name in values.specs if name not in scalars]
    schedules = read_schedules(
        experiment, options["schedules"].value, read_rule(experiment), scalars, arrays
    )
    scheduled = [entry.key for entry in schedules.values() if entry.target == "opt"]
    optimizer = read_optimizer(experiment, scheduled, scalars)
    setup = Setup(
        experiment,
        options,
        splits,
        made,
        {name: getattr(experiment, name) for name in graphconst_fields(type(experiment))},
        {name: getattr(experiment, name) for name in host_fields(type(experiment))},
        values.leaves,
        values,
        model,
        groups,
        routing.schema,
        routing.made,
        {**plain_routes(experiment), **routing.routes},
        routing.residency,
        optimizer,
        schedules,
        horizon(options, looks["train"].batches if "train" in looks else 0),
        report,
    )
    fill_report(setup, explicit, routing.notes)
    return setup


def with_model(setup: Setup) -> Setup:
    """The setup with the model and the trees of `build_model`, which is called if it was not yet.

    E-HOOK-073 when it returns other leaves than those of the setup's groups.
    """
    known = setup.groups
    if known.has_trees:
        return setup
    seed = int(setup.options["seed"].value)
    model, params, state = build_model(setup.experiment, setup.device_fields, seed)
    where = hook_location(setup.experiment, "build_model")
    made = make_groups(params, state, None, where)
    for role, recorded, group in (
        ("params", known.params, made.params),
        ("state", known.state, made.state),
    ):
        if _places(recorded) != _places(group):
            raise HookError(
                73,
                f"build_model returned other {role} than when the bundle was built",
                where=where,
                help="the tree may depend on GraphConst fields only; else build again",
            )
    return replace(setup, model=model, groups=replace(made, params=known.params, state=known.state))


def _places(group: Group) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(leaf.path, leaf.dtype, leaf.shape) for leaf in group.leaves]


def probe_split(setup: Setup, name: str) -> Schema:
    """The schema of any split, looked at when it is first used.

    E-DATA-011 for a split that is not there; else what `check_split` raises.
    """
    if name in setup.schema:
        return setup.schema[name]
    if name not in setup.splits:
        raise DataError(
            11,
            f"there is no split {name!r}",
            where=type(setup.experiment).__qualname__,
            help=did_you_mean(name, setup.splits, "splits"),
        )
    seen = look(setup.splits[name], name, int(setup.options["seed"].value))
    return check_split(setup.experiment, _routing(setup), seen)


def _routing(setup: Setup) -> Routing:
    return Routing(setup.routing, setup.schema, setup.made, setup.residency)


def route_prediction(setup: Setup, batch: Any) -> Setup:
    """The setup of an experiment without data, routed against the first batch to predict on."""
    first = check_batch(batch, "predict", 0)
    values = setup.device_fields
    seen = Look("predict", first, None, 1)
    routing = route_batch(setup.experiment, values, seen, setup.residency, BEFORE_OUTPUTS)
    schema = {"train": routing.schema["predict"]}
    routes = {**setup.routing, **routing.routes}
    return replace(setup, schema=schema, routing=routes, made=routing.made)


def horizon(options: Mapping[str, Resolved], batches: int) -> int:
    """Optimizer steps of the run: `min(max_epochs * (batches // accum), max_steps)`."""
    steps = options["max_epochs"].value * (batches // options["accum"].value)
    limit = options["max_steps"].value
    return steps if limit is None else min(steps, limit)


def check_accum(accum: int, batches: int) -> None:
    """E-OPT-040 unless the batches of an epoch make whole steps, with the nearest legal counts."""
    if batches % accum == 0:
        return
    below = batches // accum * accum
    legal = [count for count in (below, below + accum) if count]
    raise OptError(
        40,
        f"accum is {accum} and the train split has {batches} batches, which make no whole number "
        "of steps",
        where="option accum",
        help=f"the nearest legal counts are {' and '.join(map(str, legal))} batches",
    )


def _with_options(experiment: Experiment, options: Mapping[str, Resolved]) -> Experiment:
    """Fields named like a run option hold the resolved option."""
    known = type(experiment).__nitro_fields__
    return with_values(
        experiment,
        {n: o.value for n, o in options.items() if n in known and OPTIONS[n].attribute},
    )


def _splits(experiment: Experiment, options: Mapping[str, Resolved]) -> dict[str, Any]:
    given = options["data"].value
    if given is None and not has_hook(experiment, "build_data"):
        return {}
    found = given if given is not None else call_hook(experiment, "build_data")
    where = "option data" if given is not None else hook_location(experiment, "build_data")
    named = isinstance(found, Mapping) and all(
        isinstance(name, str) for name in cast("Mapping[Any, Any]", found)
    )
    if not named:
        raise DataError(
            10,
            f"the data is a {type(found).__name__}, expected a dict of splits by name",
            where=where,
            help='return {"train": source, "val": source}',
        )
    splits = dict(cast("Mapping[str, Any]", found))
    empty_by_option = given is not None and not splits
    if "train" not in splits and not empty_by_option:
        raise DataError(
            10,
            f"the data has no split train; it has {', '.join(splits) or 'none'}",
            where=where,
            help=did_you_mean("train", splits, "splits"),
        )
    return splits


def _derived(
    experiment: Experiment, splits: Mapping[str, Any], recorded: Mapping[str, Any] | None
) -> dict[str, Any]:
    if recorded is not None:
        return dict(recorded)
    if not splits or not has_hook(experiment, "derive"):
        return {}
    made = call_hook(experiment, "derive", dict(splits))
    where = hook_location(experiment, "derive")
    if not isinstance(made, Mapping):
        raise HookError(
            6,
            f"derive returned a {type(made).__name__}, expected a dict of field values",
            where=where,
            help='return {"field": value}, or {}',
        )
    values = dict(cast("Mapping[str, Any]", made))
    for name in values:
        if name not in type(experiment).__nitro_fields__:
            raise HookError(
                7,
                f"derive gives {name!r}, which is no field of {type(experiment).__name__}",
                where=where,
                help=did_you_mean(str(name), type(experiment).__nitro_fields__, "fields"),
            )
    return values


def _check_source(name: str, seen: Look, schema: Schema, options: Mapping[str, Resolved]) -> None:
    if name != "train":
        return
    check_accum(options["accum"].value, seen.batches)
    if schema.last is not None and schema.last != schema.width:
        raise DataError(
            13,
            f"the last train batch has {schema.last} rows, the others {schema.width}",
            where="split 'train'",
            help="drop it in the loader (nt.data.arrays(..., drop_last=True)), or choose a batch "
            "size that divides the rows",
        )
