"""Fills the binding report from a setup: fields, options, groups, the step, routing, data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from nitro_runtime.data.schema import Schema
from nitro_runtime.data.source import dropped_rows, order
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.fields import MARKER_NAMES
from nitroc.frontend.group_report import report_groups
from nitroc.frontend.metadata import FieldMetadata, short_value
from nitroc.frontend.options import DEFAULT_OBJECTS, OPTIONS, UNSET, default_run_dir
from nitroc.frontend.routing import Route
from nitroc.frontend.values import NotContent, content_key
from nitroc.rules import Rule

if TYPE_CHECKING:
    from nitroc.frontend.setup import Setup


def fill_report(setup: Setup, given: Experiment, notes: Iterable[tuple[str, str]]) -> None:
    """Adds every configured value; `given` is the experiment before derived values."""
    _fields(setup, given)
    _options(setup)
    _optimizer(setup)
    report_groups(setup)
    _step(setup)
    _schedules(setup)
    _routing(setup)
    for name, line in notes:
        setup.report.add("routing", name, line)
    for split, schema in setup.schema.items():
        report_split(setup, split, schema)


def _fields(setup: Setup, given: Experiment) -> None:
    for field in type(given).__nitro_fields__.values():
        value = getattr(setup.experiment, field.name)
        shown = f"{MARKER_NAMES[field.kind]} {short_value(value)}"
        setup.report.add("fields", field.name, shown, _field_source(setup, given, field))


def _field_source(setup: Setup, given: Experiment, field: FieldMetadata) -> str:
    option = setup.options.get(field.name) if field.name in OPTIONS else None
    if option is not None and OPTIONS[field.name].attribute:
        return f"the run option, from {option.source}"
    own = _is_default(getattr(given, field.name), field.default)
    if field.name in setup.derived:
        before = getattr(given, field.name)
        differs = not own and not _is_default(before, setup.derived[field.name])
        return f"derived, replaces {short_value(before)}" if differs else "derived"
    if option is not None:
        return "an ordinary field: the option of this name is no attribute"
    return "default" if own else "given"


def _is_default(value: Any, default: Any) -> bool:
    if value is default:
        return True
    try:
        return content_key(value) == content_key(default)
    except NotContent:
        return False


def _options(setup: Setup) -> None:
    for name, option in setup.options.items():
        source = f"{option.source}, baked" if option.baked else option.source
        setup.report.add("options", name, _option(setup, name), source)
    setup.report.add("options", "steps", f"{setup.horizon} optimizer steps")


def _option(setup: Setup, name: str) -> str:
    option = setup.options[name]
    if name == "run_dir" and option.value is None:
        return repr(str(default_run_dir(setup.experiment)))
    if name == "schedules":
        return ", ".join(option.value or {}) or "none"
    if option.source == UNSET and name in DEFAULT_OBJECTS:
        return DEFAULT_OBJECTS[name]
    return short_value(option.value)


def _optimizer(setup: Setup) -> None:
    optimizer, report = setup.optimizer, setup.report
    report.add("optimizer", "rule", optimizer.rule.name, optimizer.sources["optimizer"])
    for name, value in optimizer.values.items():
        supplied = optimizer.device.get(name)
        source = f"Device field {supplied}" if supplied else optimizer.sources[name]
        report.add("optimizer", name, repr(value), source)
    if not optimizer.decays:
        report.add("optimizer", "weight_decay", "0, no decay stage", "default")
    for name, value in optimizer.rule.structure.items():
        report.add("optimizer", name, repr(value), "structure")
    for name, cost in _costs(optimizer.rule):
        report.add("optimizer", name, cost)


def _costs(rule: Rule) -> Iterator[tuple[str, str]]:
    if rule.leafwise:
        yield "updates", "applied leaf by leaf: the rule reduces over a parameter or holds marks"
    if rule.marks:
        sampled = all(mark.kind == "diagnostic" for mark in rule.marks)
        when = "in sampled steps" if sampled else "in every step"
        yield "marks", f"the rule is evaluated twice {when}: they are read before the commit"


def _step(setup: Setup) -> None:
    """What one optimizer step does with the gradient of its micro-batches."""
    options = {name: option.value for name, option in setup.options.items()}
    clip, accum = options["gradient_clip_norm"], options["accum"]
    add = setup.report.add
    add("step", "accumulation", f"{accum} micro-batches per step" if accum > 1 else "none")
    add("step", "clip", f"global norm {clip!r} of the accumulated gradient" if clip else "off")
    tested = "loss, gradient norm, total weight and every scalar, before the update"
    finite = f"{tested}; {options['on_nonfinite']} when one fails"
    add("step", "finite guard", finite if options["guard_finite"] else "off")
    add("step", "counters", "attempt (steps tried), t (committed updates)", "i64")
    add("step", "devices", str(options["n_devs"]), setup.options["n_devs"].source)


def _schedules(setup: Setup) -> None:
    for entry in setup.schedules.values():
        source = setup.options["schedules"].source
        shown = getattr(entry.value, "__name__", short_value(entry.value))
        setup.report.add("schedules", entry.scalar, f"{entry.target} {shown}", source)


def _routing(setup: Setup) -> None:
    for hook, route in setup.routing.items():
        setup.report.add("routing", hook, _route(route), route.where)


def _route(route: Route) -> str:
    parts = [", ".join(route.fields) or "no fields"]
    parts += [f"{name} absent, default taken" for name in route.absent]
    parts += [name for name in ("train", "key") if getattr(route, name)]
    return "; ".join(parts)


def report_split(setup: Setup, name: str, schema: Schema) -> None:
    """Adds what is known of one split's batches."""
    source, add = setup.splits[name], setup.report.add
    add("data", name, _split(schema))
    for field, why in schema.unrouted.items():
        add("data", f"{name}.{field}", f"{why}, stays on the host")
    for field, spec in schema.fields.items():
        note = f"{spec} per row" + (f", from {spec.numpy_dtype}" if spec.narrowed else "")
        add("data", f"{name}.{field}", note)
    found = order(source)
    if name == "train" and found.note:
        add("data", name, found.note)
    path = getattr(source, "note", None)
    if path is not None:
        add("data", name, path)
    if dropped_rows(source):
        lost = "" if name == "train" else ": no metric sees them"
        add("data", name, f"{dropped_rows(source)} rows dropped{lost}")


def _split(schema: Schema) -> str:
    last = "" if schema.last in (None, schema.width) else f", the last of {schema.last}"
    return f"{schema.batches} batches of {schema.width} rows{last}"
