"""What traced hooks see of an experiment: Host fields are sentinels that refuse every use."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from nitroc.errors import FieldError
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.source import user_location

E = TypeVar("E", bound=Experiment)


def compile_view(experiment: E, device_values: Mapping[str, Any], hook: str = "") -> E:
    """An instance of the experiment's class as `hook` may see it.

    GraphConst fields hold their values, Device fields what `device_values` gives by field name
    (traced values, as a rule; the experiment's own where it gives none), Host fields and whatever
    else was stored on the instance a `StrippedHost`. Methods and properties work as usual.
    """
    cls = type(experiment)
    view = object.__new__(cls)
    for name in vars(experiment):
        if not isinstance(getattr(cls, name, None), functools.cached_property):
            object.__setattr__(view, name, _seen(experiment, name, device_values, hook))
    return view


def _seen(experiment: Experiment, name: str, device_values: Mapping[str, Any], hook: str) -> Any:
    field = type(experiment).__nitro_fields__.get(name)
    if field is None or field.kind == "host":
        return make_stripped(name, hook, type(experiment).__name__)
    value = getattr(experiment, name)
    return device_values.get(name, value) if field.kind == "device" else value


def _refusal(stripped: Any, use: str) -> FieldError:
    name, hook, cls = _about(stripped)
    shown = f"in hook {hook}" if hook else "in a traced hook"
    where = ", ".join(part for part in (f"hook {hook}" if hook else "", user_location()) if part)
    return FieldError(
        1,
        f"Host field {name} of {cls} is used {shown} ({use}), where its value does not exist",
        where=where or cls,
        help=f"mark it GraphConst ({name}: nt.GraphConst[...]; recompiles per value), mark it "
        f"Device ({name}: nt.Device[...]; never recompiles), or read it on the host",
    )


class StrippedHost:
    """Stands for a Host field in a traced hook; every use of it is E-FIELD-001."""

    __slots__ = ("_about",)

    def __getattribute__(self, name: str) -> Any:
        raise _refusal(self, f"attribute {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise _refusal(self, f"attribute {name}")

    def __delattr__(self, name: str) -> None:
        raise _refusal(self, f"attribute {name}")


_OPERATIONS = {
    "arithmetic": "add sub mul truediv floordiv mod divmod pow matmul lshift rshift and or xor",
    "reflected": "radd rsub rmul rtruediv rfloordiv rmod rdivmod rpow rmatmul rlshift rrshift rand "
    "ror rxor",
    "in place": "iadd isub imul itruediv ifloordiv imod ipow imatmul ilshift irshift iand ior ixor",
    "a sign or rounding": "neg pos abs invert round trunc floor ceil",
    "comparison": "eq ne lt le gt ge",
    "bool": "bool",
    "hash": "hash",
    "iteration": "iter next reversed len length_hint contains",
    "indexing": "getitem setitem delitem",
    "a call": "call",
    "formatting": "repr str format bytes",
    "a number": "int float complex index",
    "a context": "enter exit",
    "an array": "array jax_array array_namespace",
    "copying": "copy deepcopy reduce reduce_ex",
    "inspection": "dir sizeof",
    "a path": "fspath",
    "awaiting": "await aiter anext aenter aexit",
}


def _refuse(use: str) -> Any:
    def refuse(self: Any, *arguments: Any, **keywords: Any) -> Any:
        raise _refusal(self, use)

    return refuse


for _use, _names in _OPERATIONS.items():
    for _name in _names.split():
        setattr(StrippedHost, f"__{_name}__", _refuse(_use))


def make_stripped(name: str, hook: str, cls: str) -> StrippedHost:
    stripped = object.__new__(StrippedHost)
    object.__setattr__(stripped, "_about", (name, hook, cls))
    return stripped


def _about(stripped: Any) -> tuple[str, str, str]:
    return object.__getattribute__(stripped, "_about")


def refuse_returned(result: Any, hook: str, where: str) -> None:
    """E-FIELD-001 when a hook's result holds a Host field's sentinel, at any depth."""
    for path, stripped in _stripped_in(result, ()):
        name, _, cls = _about(stripped)
        at = f" at {'.'.join(path)}" if path else ""
        raise FieldError(
            1,
            f"Host field {name} of {cls} is returned from hook {hook}{at}",
            where=f"hook {hook}, {where}",
            help=f"mark it GraphConst ({name}: nt.GraphConst[...]; recompiles per value), mark it "
            f"Device ({name}: nt.Device[...]; never recompiles), or read it on the host",
        )


def _stripped_in(value: Any, path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], Any]]:
    if type(value) is StrippedHost:
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            yield from _stripped_in(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _stripped_in(item, (*path, str(index)))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            item = vars(value).get(field.name) if hasattr(value, "__dict__") else None
            yield from _stripped_in(item, (*path, field.name))
