"""tests/ir/*.nir with the run line `print`: a text, and the canonical text it is printed as."""

from __future__ import annotations

from pathlib import Path

import pytest

from nitro_dialect import parse, print_module, verify

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
