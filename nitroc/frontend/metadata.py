"""What is known of an experiment's fields: name, type, default, kind, doc, line."""

from __future__ import annotations

import ast
import inspect
import linecache
from dataclasses import dataclass
from typing import Any, Final, final

from nitroc.frontend.fields import Kind, marked_text


@final
class _NoDefault:
    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()
"""The default of a field that must be given."""


@dataclass(frozen=True)
class FieldMetadata:
    """One field. `doc` is None and `line` 0 where the class has no source to read."""

    name: str
    type: Any
    default: Any
    kind: Kind
    doc: str | None
    line: int

    def __str__(self) -> str:
        shown = "" if self.default is NO_DEFAULT else f" = {short_value(self.default)}"
        return f"{self.name}: {marked_text(self.kind, self.type)}{shown}"


@dataclass(frozen=True)
class Declared:
    """A name bound in a class body: its line and the bare string below it."""

    line: int
    doc: str | None


def scan_class(filename: str, line: int, name: str) -> dict[str, Declared]:
    """The names bound in the body of class `name` that stands at `line`; empty without source."""
    linecache.checkcache(filename)
    source = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    if not found:
        return {}
    return _names(min(found, key=lambda node: abs(_first_line(node) - line)))


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _names(node: ast.ClassDef) -> dict[str, Declared]:
    names: dict[str, Declared] = {}
    for at, statement in enumerate(node.body):
        doc = _doc(node.body[at + 1]) if at + 1 < len(node.body) else None
        for target in _targets(statement):
            names[target] = Declared(statement.lineno, doc)
    return names


def _targets(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [t.id for t in targets if isinstance(t, ast.Name)]
        case _:
            return []


def _doc(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
        case _:
            return None


def short_value(value: Any) -> str:
    """One line for a value: arrays as dtype and shape, never their contents."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple) and shape:
        return f"<{dtype}{list(shape)}>".replace(" ", "")  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, dict):
        inner = ", ".join(f"{k!r}: {short_value(v)}" for k, v in value.items())
        return _cut(f"{{{inner}}}")
    if type(value) in (list, tuple):
        inner = ", ".join(short_value(v) for v in value)
        left, right = "[]" if isinstance(value, list) else "()"
        return _cut(f"{left}{inner}{right}")
    if dtype is not None and shape == () and hasattr(value, "item"):
        return repr(value.item())
    return _cut(" ".join(repr(value).split()))


def _cut(text: str, width: int = 100) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
