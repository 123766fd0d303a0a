"""tests/ir/*.nir with the run line `print`: a text, and the canonical text it is printed as."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_dialect import DialectError, parse, print_module, verify

RUN = "// run: print\n"
EXPECT = "// expect\n"
FILES = sorted(
    path
    for path in (Path(__file__).parents[1] / "ir").glob("*.nir")
    if path.read_text("utf-8").startswith(RUN)
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_prints_as_expected(path: Path) -> None:
    given, expected = path.read_text("utf-8").split(EXPECT)
    module = parse(given)
    verify(module)
    assert print_module(module) == expected
    assert print_module(parse(expected)) == expected
    assert parse(expected) == module


def test_there_are_such_files() -> None:
    assert {path.stem for path in FILES} >= {"training_step", "names", "group_table", "lenient"}


PIECES = ('"', "\\", "{", "}", "(", ")", "\x00", "é", "\r", "\t", "\n", "//", "%", "@", "9" * 500)


@st.composite
def edits(draw: st.DrawFn) -> str:
    """A canonical text with up to three places cut, repeated, swapped or written over."""
    text = draw(st.sampled_from(FILES)).read_text("utf-8").split(EXPECT)[1]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 12)))
        piece = draw(st.one_of(st.just(""), st.just(text[at:end] * 2), st.sampled_from(PIECES)))
        text = text[:at] + piece + text[end:]
    return text


@settings(max_examples=200, deadline=None)
@given(edits())
def test_a_damaged_text_is_refused_with_a_place_or_still_round_trips(text: str) -> None:
    try:
        module = parse(text)
        verify(module)
    except DialectError as error:
        found = error.diagnostics
    else:
        found = ()
        assert parse(print_module(module)) == module
    assert all(d.line and d.column and d.window for d in found)
