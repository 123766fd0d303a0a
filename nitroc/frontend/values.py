"""Values of fields: converted to the declared type, read from text, keyed by their content."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import math
import pathlib
import struct
import types
import typing
from collections.abc import Hashable, Mapping
from typing import Any, Literal, Union, cast, get_args, get_origin

import numpy as np

from nitroc.frontend.fields import type_text
from nitroc.frontend.metadata import short_value


class NotContent(Exception):
    """A value without content to compare; the text says why and what to do."""


class Unconvertible(Exception):
    """A value or text that has not the declared type; the text says what was expected."""


# --- content ------------------------------------------------------------------------------------


def content_key(value: Any) -> Hashable:
    """A key that is equal exactly for values of the same type and the same bits.

    `1`, `True` and `1.0` differ, `0.0` and `-0.0` differ, a NaN equals itself; containers, arrays,
    enums and frozen dataclasses are keyed by their members. NotContent for anything whose deep
    copy would be another value.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return (kind.__name__, value)
    if kind is float:
        return ("float", struct.pack(">d", value))
    if kind is complex:
        return ("complex", struct.pack(">dd", value.real, value.imag))
    if isinstance(value, enum.Enum):
        return ("enum", _qualified(kind), value.name)
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
        return ("named", _qualified(value), value)
    if isinstance(value, np.dtype):
        return ("dtype", value.str)
    return _container_key(value, kind)


def _container_key(value: Any, kind: type) -> Hashable:
    if isinstance(value, list | tuple):
        return (_qualified(kind), *(content_key(item) for item in cast("list[Any]", value)))
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return (_qualified(kind), *((content_key(k), content_key(v)) for k, v in items))
    if isinstance(value, set | frozenset):
        return (_qualified(kind), frozenset(content_key(i) for i in cast("set[Any]", value)))
    if isinstance(value, np.ndarray | np.generic) or _is_jax_array(value):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise NotContent("an array of objects: use a tuple, or an array of numbers")
        return (_qualified(kind), array.dtype.str, str(array.dtype), array.shape, array.tobytes())
    if dataclasses.is_dataclass(value):
        return _dataclass_key(value, kind)
    return _object_key(value, kind)


def _dataclass_key(value: Any, kind: type) -> Hashable:
    if not kind.__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        raise NotContent(
            f"{kind.__qualname__} is a dataclass that can change: declare it with frozen=True"
        )
    members: list[Hashable] = []
    for member in dataclasses.fields(value):
        item = getattr(value, member.name)
        if isinstance(item, list | dict | set | bytearray | np.ndarray):
            raise NotContent(
                f"{kind.__qualname__}.{member.name} can change "
                f"({type(cast('Any', item)).__name__}): make it a tuple or a frozen dataclass"
            )
        members.append((member.name, content_key(item)))
    return (_qualified(kind), *members)


def _object_key(value: Any, kind: type) -> Hashable:
    try:
        twin = copy.deepcopy(value)
        same = bool(twin == value) and hash(twin) == hash(value)
    except TypeError as problem:
        raise NotContent(f"{kind.__qualname__} can't be hashed or copied: {problem}") from None
    if not same:
        raise NotContent(
            f"a deep copy of this {kind.__qualname__} is not equal to it: give the class __eq__ "
            "and __hash__ by content, or use a frozen dataclass"
        )
    return (_qualified(kind), value)


def _qualified(named: Any) -> str:
    module = getattr(named, "__module__", "")
    return f"{module}.{getattr(named, '__qualname__', getattr(named, '__name__', named))}"


def _is_jax_array(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib") and hasattr(value, "dtype")


def frozen_copy(value: Any) -> Any:
    """`value`, copied when it could change under its owner's hands."""
    changeable = isinstance(value, list | tuple | dict | set | np.ndarray)
    return copy.deepcopy(value) if changeable else value


# --- conversion ---------------------------------------------------------------------------------


def convert(value: Any, declared: Any) -> Any:
    """`value` as the declared type: whole floats are ints, ints are floats, lists are tuples.

    Types it does not know ask for an instance; Unconvertible when there is no such value.
    """
    origin, arguments = get_origin(declared), get_args(declared)
    if (
        isinstance(declared, str)
        or declared in (Any, object)
        or isinstance(declared, typing.TypeVar)
    ):
        return value
    if origin is typing.Annotated:
        return convert(value, arguments[0])
    if origin in (Union, types.UnionType):
        return _convert_union(value, declared, arguments)
    if origin is Literal:
        found = [a for a in arguments if type(a) is type(value) and a == value]
        return found[0] if found else _fail(value, declared)
    if declared is None or declared is type(None):
        return None if value is None else _fail(value, declared)
    if origin is not None:
        return _convert_container(value, declared, origin, arguments)
    return _convert_plain(value, declared)


def _fail(value: Any, declared: Any) -> Any:
    raise Unconvertible(
        f"{short_value(value)} is a {type(value).__name__}, expected {type_text(declared)}"
    )


def _convert_union(value: Any, declared: Any, arguments: tuple[Any, ...]) -> Any:
    exact = [a for a in arguments if (get_origin(a) or a) is type(value)]
    for option in (*exact, *arguments):
        try:
            return convert(value, option)
        except Unconvertible:
            continue
    return _fail(value, declared)


def _convert_container(value: Any, declared: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    if origin is tuple and isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(convert(item, arguments[0]) for item in items)
        if len(items) != len(arguments):
            return _fail(value, declared)
        return tuple(convert(i, a) for i, a in zip(items, arguments, strict=True))
    if origin in (list, set, frozenset) and isinstance(value, list | tuple | set | frozenset):
        return origin(convert(item, arguments[0]) for item in cast("list[Any]", value))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        if len(arguments) != 2:
            return dict(pairs)
        return {convert(k, arguments[0]): convert(v, arguments[1]) for k, v in pairs}
    if isinstance(origin, type):
        return value if isinstance(value, origin) else _fail(value, declared)
    return value


def _convert_plain(value: Any, declared: Any) -> Any:
    if declared in (bool, int, float, complex):
        return _convert_number(value, declared)
    if declared is tuple and isinstance(value, list):
        return tuple(cast("list[Any]", value))
    if declared is pathlib.Path and isinstance(value, str):
        return pathlib.Path(value)
    if declared is str and isinstance(value, np.str_):
        return str(value)
    if not isinstance(declared, type) or getattr(declared, "_is_protocol", False):
        return value
    return value if isinstance(value, declared) else _fail(value, declared)


def _convert_number(value: Any, declared: Any) -> Any:
    array_like = getattr(value, "shape", None) == () and hasattr(value, "item")
    plain = value.item() if array_like else value
    if isinstance(plain, str) or not isinstance(plain, bool | int | float | complex):
        return _fail(value, declared)
    if declared is bool:
        return (
            bool(plain)
            if plain in (0, 1) and not isinstance(plain, complex)
            else _fail(value, bool)
        )
    if declared is int:
        whole = isinstance(plain, int) or (isinstance(plain, float) and plain.is_integer())
        return int(cast("float", plain)) if whole else _fail(value, int)
    if declared is float:
        return _fail(value, float) if isinstance(plain, complex) else float(plain)
    return complex(plain)


# --- text ---------------------------------------------------------------------------------------

SCALARS = (bool, int, float, str, complex, pathlib.Path, type(None))


def is_scalar_type(declared: Any) -> bool:
    """Whether text says without doubt which value of the type is meant."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        return all(is_scalar_type(a) for a in arguments)
    if origin is Literal or declared is None:
        return True
    return declared in SCALARS or (isinstance(declared, type) and issubclass(declared, enum.Enum))


def read_value(text: str, declared: Any) -> Any:
    """The value that `--set NAME=text` means for a declared type.

    JSON for containers, `none` for None, `true`/`false`, names of enum members, bare words for
    str. Unconvertible when there is none.
    """
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is typing.Annotated:
        return read_value(text, arguments[0])
    if origin in (Union, types.UnionType):
        return _read_union(text, declared, arguments)
    if origin is Literal:
        found = [a for a in arguments if str(a) == text]
        return found[0] if found else _fail(text, declared)
    if declared in (None, type(None)):
        return None if text.lower() in ("none", "null") else _fail(text, declared)
    if isinstance(declared, type) and issubclass(declared, enum.Enum):
        return declared[text] if text in declared.__members__ else _fail(text, declared)
    if declared in (bool, int, float, complex):
        return _read_number(text, declared)
    if declared is str:
        return text
    if isinstance(declared, str) or declared in (Any, object):
        return _read_any(text)
    return _read_json(text, declared)


def _read_union(text: str, declared: Any, arguments: tuple[Any, ...]) -> Any:
    for option in sorted(arguments, key=lambda a: (a is not type(None), a is str)):
        try:
            return read_value(text, option)
        except Unconvertible:
            continue
    return _fail(text, declared)


def _read_number(text: str, declared: Any) -> Any:
    if declared is bool:
        known = {"true": True, "false": False, "1": True, "0": False}
        return known[text.lower()] if text.lower() in known else _fail(text, bool)
    try:
        return int(text, 0) if declared is int else declared(text)
    except ValueError:
        pass
    if declared is int:
        number = _read_number(text, float)
        return int(number) if math.isfinite(number) and number.is_integer() else _fail(text, int)
    return _fail(text, declared)


def _read_any(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _read_json(text: str, declared: Any) -> Any:
    if declared is pathlib.Path:
        return pathlib.Path(text)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        raise Unconvertible(f"{text!r} is no JSON for {type_text(declared)}: {problem}") from None
    if _is_array_type(declared):
        return np.asarray(value)
    return convert(value, declared)


def _is_array_type(declared: Any) -> bool:
    kind = get_origin(declared) or declared
    module = getattr(kind, "__module__", "").partition(".")[0]
    return kind is np.ndarray or module in ("jax", "jaxlib")
