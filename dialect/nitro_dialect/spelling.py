"""How names, numbers and types are written: bare where the grammar takes it, else quoted."""

from __future__ import annotations

import json
import math
import re

from nitro_dialect.ir import Attr, Literal
from nitro_dialect.types import SeedType, TensorType, TreeType, Type

LANGUAGE = 1
"""The version of the text form, in every header."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./\-]*")
PATH = re.compile(r"[A-Za-z0-9_.\-#@%]+")
WORDS = ("true", "false", "nan", "inf")
"""Names that are numbers where a number may stand."""

NUMBER = re.compile(r"-?(?:[0-9]{1,400}|[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+|inf)")


def quoted(text: str) -> str:
    """`text` as a JSON string; a lone surrogate, which no file can hold, is escaped."""
    raw = json.dumps(text, ensure_ascii=False)
    return json.dumps(text) if re.search("[\ud800-\udfff]", raw) else raw


def name(text: str) -> str:
    return text if NAME.fullmatch(text) else quoted(text)


def word(text: str) -> str:
    """A name where a number may stand too."""
    return quoted(text) if text in WORDS else name(text)


def value_name(text: str) -> str:
    return f"%{name(text)}"


def symbol_name(text: str) -> str:
    return f"@{name(text)}"


def leaf_path(text: str) -> str:
    return text if PATH.fullmatch(text) else quoted(text)


def const_value(text: str) -> str:
    """A GraphConst's value: numbers and names bare, any other text quoted."""
    return text if NUMBER.fullmatch(text) or NAME.fullmatch(text) else quoted(text)


def number(value: bool | int | float) -> str:
    """Shortest text that reads back to the same bits and the same Python type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    return "nan" if math.isnan(value) else float.__repr__(value)


def attr(value: Attr) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(word, value))}]"
    return word(value) if isinstance(value, str) else number(value)


def literal(value: Literal) -> str:
    return number(value.value)


def type_text(type: Type) -> str:
    """`f32[2,3]`, `f32 weak`, `tree<G>`, `tree<G, f32>`, `vec<G>`, `seed`."""
    if isinstance(type, TensorType):
        dims = f"[{','.join(map(str, type.shape))}]" if type.shape else ""
        return f"{name(type.dtype)}{dims}{' weak' if type.weak else ''}"
    if isinstance(type, SeedType):
        return "seed"
    if isinstance(type, TreeType):
        dtype = "" if type.dtype is None else f", {name(type.dtype)}"
        return f"tree<{name(type.group)}{dtype}>"
    return f"vec<{name(type.group)}>"
