"""Records: frozen dataclasses that stand for JSON objects, read strictly and written back exactly.

The annotations of a record are its schema: `str int float bool`, `T | None`, `tuple[T, ...]`
(a JSON array), `dict[str, T]`, other records, and `Any` for free JSON.
`Annotated[str, OneOf(...)]` limits a string. Every key must be there; an unknown one is refused
unless it starts with `x-`, in which case it is kept in `extra`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from nitro_runtime.canonical import Json

T = TypeVar("T", bound="Record")

_JSON_NAMES: dict[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    list: "array",
    type(None): "null",
}


@dataclass(frozen=True)
class Record:
    """A JSON object; `extra` holds its `x-` keys, which nothing here reads."""

    extra: dict[str, Json] = field(default_factory=dict[str, Any], kw_only=True, hash=False)


@dataclass(frozen=True)
class Mismatch:
    """One place where a value is not what its record says: a JSON path, expected, found."""

    path: str
    expected: str
    found: str


@dataclass(frozen=True)
class OneOf:
    """The closed vocabulary of a string, in an annotation."""

    choices: tuple[str, ...]


def to_json(record: Record) -> dict[str, Json]:
    """The JSON object of `record`; the inverse of `from_json`."""
    result = {name: _plain(getattr(record, name)) for name in _hints(type(record))}
    return result | record.extra


def from_json(cls: type[T], value: Json, path: str = "$") -> tuple[T | None, list[Mismatch]]:
    """Reads `value` as a `cls`: the record, or None and every mismatch found."""
    found: list[Mismatch] = []
    record = _read(cls, value, path, found)
    return (None if found else cast(T, record)), found


def json_schema(cls: type[Record]) -> dict[str, Json]:
    """The JSON Schema (2020-12) of `cls`, each record of it under `$defs`."""
    definitions: dict[str, Json] = {}
    root = _schema(cls, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": cls.__name__,
        **root,
        "$defs": definitions,
    }


@cache
def _hints(cls: type[Record]) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.name != "extra"}


def _plain(value: Any) -> Json:
    if isinstance(value, Record):
        return to_json(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in cast(Sequence[Any], value)]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast(dict[str, Any], value).items()}
    return value


def _read(hint: Any, value: Json, path: str, found: list[Mismatch]) -> Any:
    if hint is Any:
        return value
    origin = get_origin(hint)
    if origin is Annotated:
        return _read_choice(hint.__metadata__[0], value, path, found)
    if origin in (Union, types.UnionType):
        return _read_optional(hint, value, path, found)
    if origin is tuple:
        return _read_array(get_args(hint), value, path, found)
    if origin is dict:
        return _read_map(get_args(hint)[1], value, path, found)
    if dataclasses.is_dataclass(hint):
        return _read_record(cast(type[Record], hint), value, path, found)
    accepted = (int, float) if hint is float else (hint,)
    if type(value) not in accepted:
        found.append(Mismatch(path, _JSON_NAMES[hint], describe(value)))
    return value


def _read_choice(limit: OneOf, value: Json, path: str, found: list[Mismatch]) -> Any:
    if value not in limit.choices:
        found.append(Mismatch(path, f"one of {', '.join(limit.choices)}", describe(value)))
    return value


def _read_optional(hint: Any, value: Json, path: str, found: list[Mismatch]) -> Any:
    if value is None:
        return None
    (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
    return _read(inner, value, path, found)


def _read_array(items: tuple[Any, ...], value: Json, path: str, found: list[Mismatch]) -> Any:
    if not isinstance(value, list):
        found.append(Mismatch(path, "array", describe(value)))
        return ()
    values = cast(list[Json], value)
    if items[-1] is Ellipsis:
        items = (items[0],) * len(values)
    if len(values) != len(items):
        found.append(Mismatch(path, f"array of {len(items)}", f"array of {len(values)}"))
    pairs = zip(items, values, strict=False)
    return tuple(_read(hint, item, f"{path}[{i}]", found) for i, (hint, item) in enumerate(pairs))


def _read_map(hint: Any, value: Json, path: str, found: list[Mismatch]) -> Any:
    if not isinstance(value, dict):
        found.append(Mismatch(path, "object", describe(value)))
        return {}
    items = cast(dict[str, Json], value).items()
    return {key: _read(hint, item, _join(path, key), found) for key, item in items}


def _read_record(cls: type[Record], value: Json, path: str, found: list[Mismatch]) -> Any:
    if not isinstance(value, dict):
        found.append(Mismatch(path, "object", describe(value)))
        return None
    given = cast(dict[str, Json], value)
    hints = _hints(cls)
    before = len(found)
    for key in given:
        if key not in hints and not key.startswith("x-"):
            found.append(Mismatch(_join(path, key), _suggest(key, hints), "an unknown key"))
    for key in hints:
        if key not in given:
            found.append(Mismatch(_join(path, key), "this key", "nothing"))
    values = {
        key: _read(hint, given[key], _join(path, key), found)
        for key, hint in hints.items()
        if key in given
    }
    if len(found) > before:
        return None
    return cls(**values, extra={key: given[key] for key in given if key not in hints})


def _suggest(key: str, known: dict[str, Any]) -> str:
    close = get_close_matches(key, known, n=1)
    return f"{close[0]!r}" if close else f"one of {', '.join(sorted(known))}"


def _join(path: str, key: str) -> str:
    """`$.a.b`; a key that is no plain word is quoted: `$.files["weights/init.safetensors"]`."""
    return f"{path}.{key}" if key.isidentifier() else f'{path}["{key}"]'


def describe(value: Json) -> str:
    """What an error says of a value: its kind, and the value when it is short."""
    kind = _JSON_NAMES.get(type(value), type(value).__name__)
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'an array'}"
    text = repr(value)
    return f"the {kind} {text if len(text) <= 60 else text[:57] + '...'}"


def _schema(hint: Any, definitions: dict[str, Json]) -> dict[str, Json]:
    if hint is Any:
        return {}
    origin = get_origin(hint)
    if origin is Annotated:
        return {"enum": list(hint.__metadata__[0].choices)}
    if origin in (Union, types.UnionType):
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        return {"anyOf": [_schema(inner, definitions), {"type": "null"}]}
    if origin is tuple:
        return _array_schema(get_args(hint), definitions)
    if origin is dict:
        inner = _schema(get_args(hint)[1], definitions)
        return {"type": "object", "additionalProperties": inner}
    if dataclasses.is_dataclass(hint):
        return _record_schema(cast(type[Record], hint), definitions)
    return {"type": _JSON_NAMES[hint]}


def _array_schema(items: tuple[Any, ...], definitions: dict[str, Json]) -> dict[str, Json]:
    if items[-1] is Ellipsis:
        return {"type": "array", "items": _schema(items[0], definitions)}
    return {
        "type": "array",
        "prefixItems": [_schema(item, definitions) for item in items],
        "minItems": len(items),
        "maxItems": len(items),
    }


def _record_schema(cls: type[Record], definitions: dict[str, Json]) -> dict[str, Json]:
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = None
        definitions[cls.__name__] = {
            "type": "object",
            "description": " ".join((cls.__doc__ or "").split()),
            "properties": {name: _schema(hint, definitions) for name, hint in _hints(cls).items()},
            "patternProperties": {"^x-": {}},
            "required": sorted(_hints(cls)),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{cls.__name__}"}
