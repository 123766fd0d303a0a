"""Every file of tests/errors is a wrong module with its diagnostics behind it, as `//!` lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nitro_dialect import CODES, DialectError, parse, print_module, verify
from nitro_dialect.op import OPS
from nitro_dialect.ops import BINARY, COMPARE, UNARY

FILES = sorted((Path(__file__).parents[1] / "errors").glob("*.nir"))
MARK = "//! "

MODULE = """module @M version 1 pipeline "" left "" {{
  program @p {{
    scalars %f : f32
    slot %i : i64 = 0
    slot %w : ui32 = 0
    slot %b : i1 = false
    batch %x : f32[2]
    {op}
    report {{f = %f}}
  }}
}}
"""


def _split(text: str) -> tuple[str, list[str]]:
    lines = text.splitlines()
    expected = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    return "\n".join(line for line in lines if not line.startswith(MARK)), expected


def _found(text: str) -> DialectError:
    with pytest.raises(DialectError) as caught:
        verify(parse(text))
    return caught.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_diagnostics_are_those_of_the_file(path: Path) -> None:
    text, expected = _split(path.read_text("utf-8"))
    error = _found(text)
    assert [f"{d.code}: {d.what}; {d.where}" for d in error.diagnostics] == expected
    for diagnostic in error.diagnostics:
        _window_shows(text, diagnostic.line, diagnostic.column, diagnostic.window)


def _window_shows(text: str, line: int | None, column: int | None, window: str) -> None:
    """The `>` line is the text's own, or a part of it, and the caret is under its column."""
    assert line is not None
    assert column is not None
    rows = window.splitlines()
    marked = next(i for i, row in enumerate(rows) if row.startswith(">"))
    number, shown = re.fullmatch(r"> *(\d+) \|(?: (.*))?", rows[marked]).groups()  # type: ignore[union-attr]
    assert int(number) == line
    source = text.split("\n")[line - 1]
    caret = rows[marked + 1].index("^") - rows[marked].index("|") - 2
    assert (shown or "") in source
    assert (shown or "")[caret : caret + 1] == source[column - 1 : column]


def _labels() -> set[str]:
    found = {
        f"{name.replace('.', '_')}_{label.lower()}"
        for name, cls in OPS.items()
        for label in re.findall(r"\((C\d+)\)", cls.__doc__ or "")
    }
    assert "clip_by_norm_c1" in found
    return found


def _wrong_scalar_ops() -> dict[str, str]:
    """One wrong op for every label of the scalar families, which share their checks."""
    wrong: dict[str, str] = {}
    for name in UNARY:
        wrong[f"{name}_c1"] = f"%r = {name} %f : i1"
        wrong[f"{name}_c2"] = f"%r = {name} %f : f32" if name == "not" else f"%r = {name} %w : ui32"
    for name in BINARY:
        kind, value = ("f32", "%f") if name in ("and", "or") else ("i1", "%b")
        wrong[f"{name}_c1"] = f"%r = {name} %f, %i : f32"
        wrong[f"{name}_c2"] = f"%r = {name} {value}, {value} : {kind}"
    for name in COMPARE:
        wrong[f"{name}_c1"] = f"%r = {name} %f, %i : i1"
    return wrong


@pytest.mark.parametrize(("label", "op"), _wrong_scalar_ops().items())
def test_scalar_constraint(label: str, op: str) -> None:
    error = _found(MODULE.format(op=op))
    assert [d.label for d in error.diagnostics] == [label]
    assert (error.diagnostics[0].line, error.diagnostics[0].column) == (8, 5)


@pytest.mark.parametrize(
    "op",
    [
        "%r = add %f, true : f32",
        "%r = add %i, 1.0 : i64",
        "%r = add %w, -1 : ui32",
        "%r = add %w, 4294967296 : ui32",
        "%r = or %b, 1 : i1",
        "%r = add 1.0, 1.0 : f32",
        "%r = add %x, 1.0 : f32[2]",
    ],
)
def test_a_literal_must_fit_the_type_beside_it(op: str) -> None:
    label = op.split()[2] + "_c1"
    assert [d.label for d in _found(MODULE.format(op=op)).diagnostics] == [label]


@pytest.mark.parametrize(
    "op",
    [
        "%r = add %f, 1 : f32",
        "%r = add 9223372036854775807, %i : i64",
        "%r = add %w, 4294967295 : ui32",
        "%r = or %b, true : i1",
        "%r = neg %i : i64",
    ],
)
def test_what_fits_is_taken(op: str) -> None:
    verify(parse(MODULE.format(op=op)))


def test_every_constraint_label_has_a_test() -> None:
    tested = {path.stem for path in FILES} | set(_wrong_scalar_ops())
    assert _labels() - tested == set()


def test_every_constraint_file_breaks_its_label_in_canonical_text() -> None:
    for path in FILES:
        if path.stem not in _labels():
            continue
        text, _ = _split(path.read_text("utf-8"))
        assert print_module(parse(text)) == text.rstrip("\n") + "\n", path.stem
        assert path.stem in [d.label for d in _found(text).diagnostics], path.stem


def test_every_code_is_raised_by_a_file_or_below() -> None:
    raised = {line.split(":")[0] for path in FILES for line in _split(path.read_text("utf-8"))[1]}
    assert set(CODES) - raised == {"E-IR-009"}


def test_an_error_has_what_where_also_and_help() -> None:
    two = "%r = add %f, %i : f32\n    %q = neg %w : ui32"
    error = _found(MODULE.format(op=two))
    assert (error.code, error.exit) == ("E-IR-006", 3)
    assert error.what == "add_c1: operands and result must be scalars of one type"
    assert error.where == "line 8, column 5"
    assert error.also == ("E-IR-006: neg_c2: neg has no meaning on ui32; line 9, column 5",)
    assert error.help == CODES["E-IR-006"].fix
    assert str(error).startswith(f"{error.code}: {error.what}; {error.where}\n")
    assert str(error).endswith(f"also: {error.also[0]}\nhelp: {error.help}")


def test_a_file_name_is_part_of_where() -> None:
    with pytest.raises(DialectError) as caught:
        parse("module @M version 7 pipeline", source="04-guard.nir")
    assert caught.value.where == "04-guard.nir, line 1, column 29"
