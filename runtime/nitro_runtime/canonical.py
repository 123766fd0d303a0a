"""Canonical JSON: one text per value, so that equal values have equal digests.

Keys sorted by code point, one space of indent per level, UTF-8 without escapes that are not needed,
shortest float form, a final newline. NaN, infinities, duplicate keys and lone surrogates have no
canonical form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

Json: TypeAlias = Any
"""None, bool, int, float, str, list or dict of them: what one canonical text stands for."""

MAX_DEPTH = 64


class CanonicalError(ValueError):
    """The text or value has no canonical form; the message says what and where."""


def dump(value: Json) -> bytes:
    """The canonical bytes of `value`.

    Raises:
        CanonicalError: `value` holds something JSON has no one form for.
    """
    try:
        text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
        return (text + "\n").encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise CanonicalError(f"no canonical JSON: {error}") from error


def parse(data: bytes) -> Json:
    """The value of JSON text `data`, which need not be canonical.

    Raises:
        CanonicalError: not UTF-8, not JSON, a duplicate key, NaN or an infinity, deeper than
            `MAX_DEPTH`.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CanonicalError(
            f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
        ) from error
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise CanonicalError(f"not JSON: {error.msg} at {where}") from error
    except RecursionError as error:
        raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels") from error
    except CanonicalError:
        raise
    except ValueError as error:
        raise CanonicalError(f"not JSON: {error}") from error
    _check_values(value)
    return value


def digest(data: bytes) -> str:
    """sha256 of `data`, 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def identity(manifest: Mapping[str, Json]) -> str:
    """A bundle's identity: the digest of its canonical manifest without the key `digest`."""
    return digest(dump({key: value for key, value in manifest.items() if key != "digest"}))


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for key, value in pairs:
        if key in result:
            raise CanonicalError(f"duplicate key {key!r}")
        result[key] = value
    return result


def _constant(text: str) -> NoReturn:
    raise CanonicalError(f"{text} is not a JSON number")


def _check_values(value: Json) -> None:
    """Depth, surrogates and floats that overflowed while they were read (`1e999`)."""
    level: list[Json] = [value]
    depth = 0
    while level:
        if depth > MAX_DEPTH:
            raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels")
        below: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                below += item.keys()
                below += item.values()
            elif isinstance(item, list):
                below += item
            else:
                _check_leaf(item)
        level = below
        depth += 1


def _check_leaf(value: Json) -> None:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise CanonicalError("a number is too large for a float")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise CanonicalError(f"{value!r} is not Unicode text") from error
