"""Containers of arrays: key paths as strings, and specs that rebuild a container from its leaves.

A key path is one string, injective over every path a container can have:

| key | written |
|---|---|
| string key of a dict | the name; bytes outside `[A-Za-z0-9_-]` as `%XX` (UTF-8); `""` as `%` |
| index of a list or tuple | `#0` |
| integer key of a dict (`IntKey`) | `#k0` |
| attribute, field of a named tuple (`Attr`) | `@name` |
| the container is itself a leaf | `@` |

Keys are joined by `.`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast


@dataclass(frozen=True)
class Attr:
    """An attribute of a dataclass or a field of a named tuple."""

    name: str


@dataclass(frozen=True)
class IntKey:
    """An integer key of a dict (a plain `int` is an index of a list or tuple)."""

    value: int


Key = str | int | Attr | IntKey
Path = tuple[Key, ...]

ROOT = "@"
"""The path of a container that is itself a leaf."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_NAME = r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+"
_SEGMENT = re.compile(rf"#(?P<index>\d+)|#k(?P<key>-?\d+)|@(?P<attr>{_NAME})|(?P<name>{_NAME}|%)")


def encode_path(keys: Iterable[Key]) -> str:
    """One string for a key path. TypeError for a key that is none of `Key`'s types."""
    path = tuple(keys)
    return ".".join(_encode_key(key) for key in path) if path else ROOT


def decode_path(text: str) -> Path:
    """The inverse of `encode_path`; ValueError for a string it never writes."""
    if text == ROOT:
        return ()
    path = tuple(_decode_segment(segment, text) for segment in text.split("."))
    if encode_path(path) != text:
        raise ValueError(f"{text!r} is not a canonical key path")
    return path


def _encode_key(key: object) -> str:
    match key:
        case bool():
            raise TypeError(f"a bool can't be a key of a path: {key!r}")
        case str():
            return _escape(key) or "%"
        case int() if key >= 0:
            return f"#{key}"
        case Attr(name) if name:
            return f"@{_escape(name)}"
        case IntKey(value):
            return f"#k{value}"
        case _:
            raise TypeError(f"a key of a path is a string, an index, Attr or IntKey, not {key!r}")


def _escape(name: str) -> str:
    raw = name.encode("utf-8", "surrogatepass")
    return "".join(chr(b) if b in _PLAIN else f"%{b:02X}" for b in raw)


def _unescape(text: str) -> str:
    out = bytearray()
    at = 0
    while at < len(text):
        if text[at] == "%":
            out.append(int(text[at + 1 : at + 3], 16))
            at += 3
        else:
            out.append(ord(text[at]))
            at += 1
    return out.decode("utf-8", "surrogatepass")


def _decode_segment(segment: str, whole: str) -> Key:
    found = _SEGMENT.fullmatch(segment)
    if found is None:
        raise ValueError(f"{whole!r} is not a key path: {segment!r} is no key")
    if found["index"] is not None:
        return int(found["index"])
    if found["key"] is not None:
        return IntKey(int(found["key"]))
    if found["attr"] is not None:
        return Attr(_unescape(found["attr"]))
    return "" if segment == "%" else _unescape(found["name"])


Kind = Literal["leaf", "none", "dict", "list", "tuple", "named"]


@dataclass(frozen=True)
class TreeSpec:
    """The structure of a container of dicts, lists, tuples, named tuples and None.

    `path` names a leaf; `keys` are the keys of a dict (str or int) or the fields of a named tuple,
    whose type is called `name`; `children` follow the keys.
    """

    kind: Kind
    children: tuple[TreeSpec, ...] = ()
    keys: tuple[str | int, ...] = ()
    path: str = ""
    name: str = ""

    def leaves(self) -> tuple[str, ...]:
        """The paths of all leaves, in order."""
        if self.kind == "leaf":
            return (self.path,)
        return tuple(path for child in self.children for path in child.leaves())

    def to_json(self) -> Any:
        """Plain JSON: `None`, or an object with one key that is the kind."""
        inner = [child.to_json() for child in self.children]
        match self.kind:
            case "leaf":
                return {"leaf": self.path}
            case "none":
                return None
            case "dict":
                return {"dict": [[k, v] for k, v in zip(self.keys, inner, strict=True)]}
            case "named":
                fields = [[k, v] for k, v in zip(self.keys, inner, strict=True)]
                return {"named": {"name": self.name, "fields": fields}}
            case _:
                return {self.kind: inner}

    @staticmethod
    def from_json(value: Any) -> TreeSpec:
        """The inverse of `to_json`; ValueError for anything it never writes."""
        match value:
            case None:
                return TreeSpec("none")
            case {"leaf": str(path)}:
                return TreeSpec("leaf", path=path)
            case {"list": list(items)}:
                return TreeSpec("list", _specs(items))
            case {"tuple": list(items)}:
                return TreeSpec("tuple", _specs(items))
            case {"dict": list(pairs)}:
                return TreeSpec("dict", _specs(v for _, v in pairs), tuple(k for k, _ in pairs))
            case {"named": {"name": str(name), "fields": list(pairs)}}:
                keys = tuple(k for k, _ in pairs)
                return TreeSpec("named", _specs(v for _, v in pairs), keys, name=name)
            case _:
                raise ValueError(f"not the spec of a container: {value!r}")


def _specs(items: Iterable[Any]) -> tuple[TreeSpec, ...]:
    return tuple(TreeSpec.from_json(item) for item in items)


def flatten(tree: object) -> tuple[TreeSpec, dict[str, Any]]:
    """The spec of `tree` and its leaves by path; whatever is no container is a leaf."""
    leaves: dict[str, Any] = {}
    return _flatten(tree, (), leaves), leaves


def _flatten(tree: object, path: Path, leaves: dict[str, Any]) -> TreeSpec:
    if tree is None:
        return TreeSpec("none")
    if isinstance(tree, Mapping):
        items = list(cast("Mapping[str | int, object]", tree).items())
        inner = [_flatten(v, (*path, _dict_key(k)), leaves) for k, v in items]
        return TreeSpec("dict", tuple(inner), tuple(k for k, _ in items))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        names = cast("tuple[str, ...]", tree._fields)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        inner = [_flatten(getattr(tree, n), (*path, Attr(n)), leaves) for n in names]
        return TreeSpec("named", tuple(inner), names, name=type(tree).__name__)
    if isinstance(tree, list | tuple):
        items = cast("list[object] | tuple[object, ...]", tree)
        inner = [_flatten(v, (*path, i), leaves) for i, v in enumerate(items)]
        return TreeSpec("list" if isinstance(tree, list) else "tuple", tuple(inner))
    name = encode_path(path)
    leaves[name] = tree
    return TreeSpec("leaf", path=name)


def _dict_key(key: str | int) -> Key:
    return IntKey(key) if isinstance(key, int) and not isinstance(key, bool) else key


def unflatten(spec: TreeSpec, leaves: Mapping[str, Any]) -> Any:
    """The container of `spec` with `leaves` in it; KeyError for a leaf that is missing."""
    if spec.kind == "leaf":
        return leaves[spec.path]
    if spec.kind == "none":
        return None
    inner = [unflatten(child, leaves) for child in spec.children]
    match spec.kind:
        case "dict":
            return dict(zip(spec.keys, inner, strict=True))
        case "named":
            return _named_type(spec.name, tuple(map(str, spec.keys)))(*inner)
        case "tuple":
            return tuple(inner)
        case _:
            return inner


@functools.cache
def _named_type(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    """One class per named tuple, so that what two calls give has one type."""
    entries = [(field, Any) for field in fields]
    return NamedTuple(name, entries)
