"""Errors of the dialect: one exception, one table of codes, explained by `nitroc explain CODE`.

DialectError   E-IR   a module can't be read, or breaks a rule of the language (exit 3)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CodeInfo:
    """What `nitroc explain CODE` prints."""

    title: str
    cause: str
    fix: str


SYNTAX, UNKNOWN, VERSION, TWICE, SHAPE, CONSTRAINT, ORDER, END, LEVEL, GROUP, INPUT, TABLE = range(
    1, 13
)
"""Numbers of the codes below."""

CODES: dict[str, CodeInfo] = {
    "E-IR-001": CodeInfo(
        "the text is not a module",
        "At the place shown, the grammar allows something else.",
        "Write one of what the message lists, or print the module again from its source.",
    ),
    "E-IR-002": CodeInfo(
        "an unknown name",
        "An op, a value, a function, a mark, a group, a dtype or a keyword has no such name here.",
        "Take the name that the message suggests, or declare it before its first use.",
    ),
    "E-IR-003": CodeInfo(
        "another version of the language",
        "The module's header has a version that this nitroc does not read.",
        "Read it with the nitroc that wrote it, or build it again.",
    ),
    "E-IR-004": CodeInfo(
        "a name given twice",
        "Two values of one program, or two entries of one table, have the same name.",
        "Rename one of them.",
    ),
    "E-IR-005": CodeInfo(
        "an op with the wrong parts",
        "Operands, attributes, symbol, region or results differ from those the op declares.",
        "Give exactly the parts that the op's documentation lists; 1.0 is a float, 1 an integer.",
    ),
    "E-IR-006": CodeInfo(
        "an op's constraint is broken",
        "The label is the numbered constraint in the op's documentation.",
        "Change the operand, attribute or result that the message names.",
    ),
    "E-IR-007": CodeInfo(
        "a value used where it is not defined",
        "An operand is defined later, in a region that has ended, or in another program.",
        "Move the definition before the use, or yield the value from its region.",
    ),
    "E-IR-008": CodeInfo(
        "a region does not end as it must",
        "A region ends in `yield`; a program in `assign`, `report`, `output`, in this order.",
        "Move the terminator to the end, or add it.",
    ),
    "E-IR-009": CodeInfo(
        "a named op after `expand`",
        "Emission knows the core ops only; `expand` rewrites the others into them.",
        "Run `expand` after every pass that adds named ops.",
    ),
    "E-IR-010": CodeInfo(
        "a group table is wrong",
        "Its role, a path, a dtype or a shape is not one that a group may have.",
        "Correct the row that the message names.",
    ),
    "E-IR-011": CodeInfo(
        "a program's input is wrong",
        "Its role, type or initial value do not fit, or it is assigned twice.",
        "Correct the input's line, or leave one assignment.",
    ),
    "E-IR-012": CodeInfo(
        "a table of the module is wrong",
        "A function, a rule or a mark disagrees with itself, or is kept under another name.",
        "Correct the declaration that the message names.",
    ),
}
"""Every code of this package; a number is given once and never reused."""


def code(number: int) -> str:
    """`E-IR-NNN` of a number that is in the table; another one is an assertion."""
    text = f"E-IR-{number:03d}"
    assert text in CODES, f"{text} is not in the table"
    return text


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` was probably meant to be."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str], sigil: str = "") -> str:
    """`: did you mean X?` when a known name is near, else the empty string."""
    near = nearest(name, known)
    return f": did you mean {sigil}{near}?" if near is not None else ""


@dataclass(frozen=True)
class Diagnostic:
    """One finding. `line` and `column` count from 1; `window` is the text around, `>` on the line.

    `label` is the broken constraint (`clip_by_norm_c3`), for E-IR-006.
    """

    code: str
    message: str
    line: int | None = None
    column: int | None = None
    window: str = ""
    label: str | None = None
    help: str | None = None

    @property
    def where(self) -> str | None:
        return None if self.line is None else f"line {self.line}, column {self.column}"

    @property
    def what(self) -> str:
        """The message after its label."""
        return self.message if self.label is None else f"{self.label}: {self.message}"


class DialectError(Exception):
    """A module can't be read or is wrong; `diagnostics` holds everything found, in text order."""

    exit_code = 3

    def __init__(self, diagnostics: Sequence[Diagnostic], *, source: str | None = None) -> None:
        assert diagnostics
        self.diagnostics = tuple(diagnostics)
        self.source = source
        self.code = self.diagnostics[0].code
        super().__init__(self.text())

    @property
    def exit(self) -> int:
        """The exit status a command ends with."""
        return self.exit_code

    @property
    def what(self) -> str:
        return self.diagnostics[0].what

    @property
    def where(self) -> str | None:
        parts = [part for part in (self.source, self.diagnostics[0].where) if part]
        return ", ".join(parts) or None

    @property
    def also(self) -> tuple[str, ...]:
        """Findings after the first, one line each."""
        return tuple(
            f"{d.code}: {d.what}" + (f"; {d.where}" if d.where else "")
            for d in self.diagnostics[1:]
        )

    @property
    def help(self) -> str:
        return self.diagnostics[0].help or CODES[self.code].fix

    def text(self) -> str:
        """`E-IR-NNN: what; where`, the window, `also:` lines and `help:`."""
        lines = [f"{self.code}: {self.what}" + (f"; {self.where}" if self.where else "")]
        if self.diagnostics[0].window:
            lines.append(self.diagnostics[0].window)
        lines += [f"also: {line}" for line in self.also]
        lines.append(f"help: {self.help}")
        return "\n".join(lines)
