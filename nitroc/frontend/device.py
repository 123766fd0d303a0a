"""Device and GraphConst values: converted, checked, and for Device split into program inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_runtime.data.schema import as_numeric, describe, narrow
from nitro_runtime.dtypes import ir_dtype, spell
from nitro_runtime.errors import DataError
from nitro_runtime.trees import TreeSpec, flatten, unflatten
from nitroc.errors import FieldError
from nitroc.frontend.experiment import E, Experiment, with_values
from nitroc.frontend.fields import type_text
from nitroc.frontend.metadata import FieldMetadata, short_value
from nitroc.frontend.values import (
    NotContent,
    Unconvertible,
    content_key,
    convert,
    frozen_copy,
)

SLOT_DTYPES = ("f32", "i32", "i1")
"""Dtypes a slot of the packed scalars can hold."""


@dataclass(frozen=True)
class DeviceLeaf:
    """One array of a Device field: `field` itself, or `field.path` inside a nested value.

    `scalar` leaves are slots of the packed scalars; the others are inputs of their own.
    """

    name: str
    field: str
    dtype: str
    shape: tuple[int, ...]
    value: np.ndarray[Any, Any]
    scalar: bool

    def __str__(self) -> str:
        return spell(self.dtype, self.shape)


@dataclass(frozen=True)
class DeviceValues:
    """All Device leaves in the order of the fields, and what rebuilds the fields' values.

    `specs` are the fields' containers.
    """

    leaves: dict[str, DeviceLeaf]
    specs: dict[str, TreeSpec]
    host: dict[str, Any]
    """The fields' values for host hooks: plain numbers as they were given, arrays narrowed."""

    def build(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The fields' values from one value per leaf name, nested as they were given."""
        return {
            field: unflatten(spec, _Prefixed(field, values)) for field, spec in self.specs.items()
        }


class _Prefixed(dict[str, Any]):
    """Leaves of one field by their path inside it."""

    def __init__(self, field: str, values: Mapping[str, Any]) -> None:
        super().__init__()
        self._field = field
        self._values = values

    def __missing__(self, path: str) -> Any:
        return self._values[leaf_name(self._field, path)]


def leaf_name(field: str, path: str) -> str:
    return field if path == "@" else f"{field}.{path}"


def checked_constants(experiment: E) -> E:
    """The experiment with every GraphConst value of its declared type and keyed by content.

    E-FIELD-008 for a value of another type, -007 for one without content.
    """
    values: dict[str, Any] = {}
    for field in _fields(experiment, "graphconst"):
        value = _converted(experiment, field)
        try:
            content_key(value)
        except NotContent as problem:
            raise FieldError(
                7,
                f"GraphConst field {field.name} = {short_value(value)} can't be compared by "
                f"content: {problem}",
                where=_where(experiment, field),
                help="use numbers, strings, tuples or frozen dataclasses of those",
            ) from None
        values[field.name] = frozen_copy(value)
    return with_values(experiment, values)


def _fields(experiment: Experiment, kind: str) -> list[FieldMetadata]:
    return [f for f in type(experiment).__nitro_fields__.values() if f.kind == kind]


def _where(experiment: Experiment, field: FieldMetadata) -> str:
    line = f" (line {field.line})" if field.line else ""
    return f"{type(experiment).__name__}.{field.name}{line}"


def _converted(experiment: Experiment, field: FieldMetadata) -> Any:
    value = getattr(experiment, field.name)
    try:
        return convert(value, field.type)
    except Unconvertible as problem:
        raise FieldError(
            8,
            f"field {field.name}: {problem}",
            where=_where(experiment, field),
            help=f"give a value of type {type_text(field.type)}, or declare another type",
        ) from None


def device_values(experiment: Experiment) -> DeviceValues:
    """The Device fields as leaves.

    `float` is f32, `int` i32, `bool` i1; an array keeps its dtype after narrowing. E-FIELD-008 for
    a value of another type, -009 for one that no program can hold or that does not fit.
    """
    leaves: dict[str, DeviceLeaf] = {}
    specs: dict[str, TreeSpec] = {}
    host: dict[str, Any] = {}
    for field in _fields(experiment, "device"):
        value = _converted(experiment, field)
        specs[field.name], found = device_leaves(experiment, field, value)
        leaves |= found
        alone = found.get(field.name)
        if alone is not None and alone.scalar:
            host[field.name] = value.item() if hasattr(value, "item") else value
    made = DeviceValues(leaves, specs, host)
    rebuilt = made.build({name: leaf.value for name, leaf in leaves.items()})
    return DeviceValues(leaves, specs, {**rebuilt, **host})


def device_leaves(
    experiment: Experiment, field: FieldMetadata, value: Any
) -> tuple[TreeSpec, dict[str, DeviceLeaf]]:
    """One Device field's value as a spec and its leaves by name."""
    spec, parts = flatten(_as_arrays(value, field))
    if "none" in _kinds(spec):
        raise _not_for_device(experiment, field, "None")
    leaves: dict[str, DeviceLeaf] = {}
    for path, part in parts.items():
        name = leaf_name(field.name, path)
        leaves[name] = _leaf(experiment, field, name, part, alone=spec.kind == "leaf")
    return spec, leaves


def _as_arrays(value: Any, field: FieldMetadata) -> Any:
    """A list of numbers given for an array type is that array."""
    module = getattr(field.type, "__module__", "").partition(".")[0]
    if isinstance(value, list) and module in ("numpy", "jax", "jaxlib"):
        return np.asarray(value)
    return value


def _kinds(spec: TreeSpec) -> set[str]:
    return {spec.kind}.union(*(_kinds(child) for child in spec.children))


def _leaf(
    experiment: Experiment, field: FieldMetadata, name: str, value: Any, *, alone: bool
) -> DeviceLeaf:
    array = as_numeric(value)
    if array is None:
        raise _not_for_device(experiment, field, describe(value))
    try:
        narrow_value = narrow(array, field=name, where=_where(experiment, field))
    except DataError as problem:
        raise FieldError(
            9,
            f"Device field {problem.what.removeprefix('field ')}",
            where=_where(experiment, field),
            help="rescale the value, or give an array of a dtype that holds it",
        ) from None
    own = narrow_value.copy() if narrow_value is value else narrow_value
    dtype = ir_dtype(own.dtype)
    scalar = alone and not own.shape and dtype in SLOT_DTYPES
    return DeviceLeaf(name, field.name, dtype, own.shape, own, scalar)


def _not_for_device(experiment: Experiment, field: FieldMetadata, found: str) -> FieldError:
    return FieldError(
        9,
        f"Device field {field.name} holds {found}, expected numbers",
        where=_where(experiment, field),
        help="a Device field is a number, a numeric array, or a nested dict or tuple of these; "
        "mark it Host otherwise",
    )
