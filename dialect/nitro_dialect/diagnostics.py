"""Where a finding is: line, column and a window of the text with `>` and a caret."""

from __future__ import annotations

from collections.abc import Sequence

from nitro_dialect.errors import Diagnostic, code

AROUND = 2
"""Lines shown before and after the one that is wrong."""

WIDEST = 100
"""Columns of the text a window shows."""


def window(lines: Sequence[str], line: int, column: int) -> str:
    """Lines around `line` (from 1), numbered, `>` on it, and a caret under `column` (from 1)."""
    first, last = max(1, line - AROUND), min(len(lines), line + AROUND)
    width = len(str(last))
    # A far column is shown by its surroundings: report and func lines are long.
    cut = max(0, column - WIDEST + 20)
    shown: list[str] = []
    for number in range(first, last + 1):
        mark = ">" if number == line else " "
        text = lines[number - 1][cut : cut + WIDEST]
        shown.append(f"{mark} {number:>{width}} | {text}".rstrip())
        if number == line:
            shown.append(f"  {'':>{width}} | {' ' * (column - 1 - cut)}^")
    return "\n".join(shown)


def located(
    number: int,
    message: str,
    lines: Sequence[str],
    line: int,
    column: int,
    *,
    label: str | None = None,
    help: str | None = None,
) -> Diagnostic:
    """A diagnostic with its window; `line` and `column` count from 1."""
    shown = window(lines, line, column)
    return Diagnostic(code(number), message, line, column, shown, label, help)
