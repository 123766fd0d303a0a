"""The grammar at work: text to tree, and lark's findings in the language's own words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, TypeAlias

from nitro_dialect.diagnostics import located
from nitro_dialect.errors import SYNTAX, Diagnostic, DialectError, suggestion
from nitro_dialect.ir import ROLES

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

    Node: TypeAlias = Tree[Token]

_SPOKEN = {
    "NAME": "a name",
    "VALUE": "a %value",
    "SYMBOL": "an @name",
    "STRING": 'a "text"',
    "PATH": "a leaf's path",
    "INT": "an integer",
    "FLOAT": "a number",
    "_NL": "the end of the line",
    "$END": "the end of the text",
}


@cache
def grammar() -> Lark:
    """The LALR parser of `nitro.lark`, built once per process."""
    from lark import Lark  # a module that is only built and printed needs no parser

    text = resources.files("nitro_dialect").joinpath("nitro.lark").read_text("utf-8")
    return Lark(text, parser="lalr", lexer="contextual", maybe_placeholders=True)


def tree_of(text: str, source: str | None) -> Node:
    """The tree of `text`; DialectError E-IR-001 at the first token the grammar does not take."""
    from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken

    try:
        return grammar().parse(text)
    except UnexpectedToken as error:
        expected: Iterable[str] = error.accepts or error.expected
        line, column, found = error.line, error.column, str(error.token)
        ended = error.token.type == "$END"
    except UnexpectedCharacters as error:
        expected, line, column = error.allowed or (), error.line, error.column
        found, ended = _word(text, error.pos_in_stream or 0), False
    except UnexpectedEOF as error:
        expected, line, column, found, ended = error.expected, -1, -1, "", True
    raise DialectError([_unexpected(text, expected, line, column, found, ended)], source=source)


def _word(text: str, at: int) -> str:
    match = re.compile(r"\S+").match(text, at)
    return match[0] if match else ""


def _unexpected(
    text: str, listed: Iterable[str], line: int, column: int, found: str, ended: bool
) -> Diagnostic:
    lines = text.split("\n")
    if ended:
        line, column = len(lines), len(lines[-1]) + 1
    expected = set(listed)
    if "FLOAT" in expected:
        expected -= {"INT", "TRUE", "FALSE", "NAN", "INF", "MINUS_INF"}
    keywords = _keywords(expected)
    shown = "the end of the text" if ended else _shown(found)
    choices = sorted(f"`{k}`" for k in keywords) + sorted(
        _SPOKEN[name] for name in expected if name in _SPOKEN
    )
    near = suggestion(found.strip(), keywords)
    message = f"found {shown}, expected {_alternatives(choices)}{near}"
    return located(SYNTAX, message, lines, line, column, help=_advice(lines[line - 1]))


def _advice(text: str) -> str | None:
    """The fix for what a line looks like, where the grammar alone can't tell."""
    if re.match(rf"\s*({'|'.join(ROLES)})\s+%", text):
        return "Declare inputs one per line, before the program's first op."
    if re.match(r"\s*[\w.]+(\s*,\s*[\w.]+)*\s*=", text):
        return "Results begin with %: write %x = op ..."
    return None


def _keywords(expected: Iterable[str]) -> list[str]:
    from lark.lexer import PatternStr

    patterns = {t.name: t.pattern for t in grammar().terminals}
    found = [patterns[name] for name in expected if name in patterns]
    return [p.value for p in found if isinstance(p, PatternStr)]


def _shown(found: str) -> str:
    return "the end of the line" if not found.strip() else f"`{found.strip()}`"


def _alternatives(choices: list[str]) -> str:
    if len(choices) < 2:
        return "".join(choices)
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
