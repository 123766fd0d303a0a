"""`--set NAME=VALUE` and presets: texts and partial dicts that become fields and options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from nitro_runtime.errors import UsageError
from nitro_runtime.places import running
from nitroc.errors import FieldError, HookError
from nitroc.frontend.experiment import Experiment, check_fields
from nitroc.frontend.fields import type_text
from nitroc.frontend.hooks import host_place
from nitroc.frontend.metadata import FieldMetadata
from nitroc.frontend.names import did_you_mean
from nitroc.frontend.options import OBJECTS, OPTIONS, check_option
from nitroc.frontend.source import function_location
from nitroc.frontend.values import Unconvertible, convert, is_scalar_type, read_value

E = TypeVar("E", bound=Experiment)

Command = Literal["build", "run"]

_FLAGS = {
    "preset": "a preset has its own flag: nitroc build exp.py --preset NAME",
    "data": "data are given as a file: nitroc run bundle/ --data F.npz",
}


@dataclass(frozen=True)
class Settings:
    """What `--set` said: values for the constructor, and run options."""

    fields: dict[str, Any]
    options: dict[str, Any]


def read_settings(cls: type[Experiment], texts: Mapping[str, str], *, command: Command) -> Settings:
    """Reads each text by the declared type of the field or option it names.

    E-USAGE-001 for an unknown name, -004 for a text that has no value of the type, -005 for a
    GraphConst field or a baked option where the bundle is only run, -006 for a Host field whose
    type is no scalar.
    """
    fields: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, text in texts.items():
        if name in OPTIONS and name not in _FLAGS:
            options[name] = read_option(name, text, command)
        elif name in cls.__nitro_fields__:
            fields[name] = _read_field(cls, cls.__nitro_fields__[name], text, command)
        else:
            known = {*cls.__nitro_fields__, *OPTIONS} - {"preset", "data"}
            raise UsageError(
                1,
                f"--set {name}={text}: {cls.__name__} has no field and nitroc no option {name!r}",
                where=f"--set {name}",
                help=_FLAGS.get(name) or did_you_mean(name, known, "fields and options"),
            )
    return Settings(fields, options)


def read_option(name: str, text: str, command: Command) -> Any:
    """The value of one run option; E-USAGE-002 to -005."""
    spec = OPTIONS[name]
    if spec.baked and command == "run":
        raise _baked(spec.name, f"the option {spec.name}")
    if spec.name in OBJECTS:
        if text.lower() != "none":
            raise _unreadable(spec.name, text, "none (its objects are written in the experiment)")
        return None
    value = _read(spec.name, text, spec.declared)
    return check_option(spec, value, "--set")


def _read_field(cls: type[Experiment], field: FieldMetadata, text: str, command: Command) -> Any:
    if field.kind == "graphconst" and command == "run":
        raise _baked(field.name, f"{cls.__name__}.{field}")
    if field.kind == "host" and not is_scalar_type(field.type):
        raise UsageError(
            6,
            f"Host field {field.name} is {type_text(field.type)}: a text does not say what value",
            where=f"--set {field.name}",
            help="annotate it with a scalar type, or give the value in Python",
        )
    return _read(field.name, text, field.type)


def _read(name: str, text: str, declared: Any) -> Any:
    try:
        return convert(read_value(text, declared), declared)
    except Unconvertible:
        raise _unreadable(name, text, type_text(declared)) from None


def _unreadable(name: str, text: str, expected: str) -> UsageError:
    return UsageError(
        4,
        f"--set {name}={text}: {text!r} can't be read, expected {expected}",
        where=f"--set {name}",
        help="write JSON for containers, none for None, and bare words for text",
    )


def _baked(name: str, what: str) -> UsageError:
    return UsageError(
        5,
        f"{what} is part of the compiled programs and can't change when the bundle runs",
        where=f"--set {name}",
        help=f"build again: nitroc build exp.py --set {name}=...",
    )


def presets(cls: type[Experiment]) -> dict[str, dict[str, Any]]:
    """The presets of `cls` by name; every key is checked against the fields (E-FIELD-015)."""
    made = getattr(cls, "presets", None)
    if made is None:
        return {}
    if not inspect.ismethod(made):
        raise HookError(
            2,
            "presets is no classmethod",
            where=function_location(made),
            help="write @classmethod above def presets(cls)",
        )
    with running(host_place(cls, "presets")):
        found = made()
    if not isinstance(found, Mapping) or not all(isinstance(v, Mapping) for v in found.values()):
        raise HookError(
            6,
            f"presets returned a {type(found).__name__}, expected a dict of dicts of field values",
            where=function_location(made),
            help='return {"name": {"field": value}}',
        )
    for name, values in found.items():
        check_fields(cls, values, said_by=f"preset {name!r}")
    return {name: dict(values) for name, values in found.items()}


def preset_values(cls: type[Experiment], name: str) -> dict[str, Any]:
    """The field values of one preset; E-FIELD-011 lists those there are."""
    known = presets(cls)
    if name in known:
        return known[name]
    has_none = not known
    raise FieldError(
        11,
        f"{cls.__name__} has no presets" if has_none else f"{cls.__name__} has no preset {name!r}",
        where=cls.__qualname__,
        help="write the classmethod presets" if has_none else did_you_mean(name, known, "presets"),
    )


def from_preset(cls: type[E], name: str, **overrides: Any) -> E:
    """An instance of `cls` with the values of preset `name`, then `overrides`."""
    values = preset_values(cls, name)
    check_fields(cls, overrides)
    return cls(**{**values, **overrides})


def split_keywords(
    cls: type[Experiment], keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`Nitro(Cls, "name", **keywords)` as (field values, run options); an option's name wins.

    E-FIELD-015 names both sets for a keyword in neither, E-FIELD-014 refuses `preset=`.
    """
    if "preset" in keywords:
        raise FieldError(
            14,
            f"the preset is given twice: by position and as preset={keywords['preset']!r}",
            where=cls.__qualname__,
            help="drop preset=",
        )
    fields: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in keywords.items():
        if name in OPTIONS:
            options[name] = value
        elif name in cls.__nitro_fields__:
            fields[name] = value
        else:
            raise FieldError(
                15,
                f"{name!r} is neither a run option nor a field of {cls.__name__}",
                where=cls.__qualname__,
                also=[f"the options are {', '.join(sorted(OPTIONS))}"],
                help=did_you_mean(name, cls.__nitro_fields__, "fields"),
            )
    return fields, options
