"""What each pass does, as text: `tests/ir/<pass>.nir` is a run line, a module, the module after."""

from __future__ import annotations

from pathlib import Path

import pytest

from nitro_dialect import difference, parse, print_module
from nitroc.passes import pipeline

TEXTS = Path(__file__).parents[2] / "ir"


@pytest.mark.parametrize("name", pipeline.PASSES)
def test_text(name: str) -> None:
    head, _, wanted = (TEXTS / f"{name}.nir").read_text().partition("// gives:\n")
    line, _, given = head.partition("\n")
    passes = pipeline.parse(line.removeprefix("// run: "))
    assert [p.name for p in passes] == [name]
    made = pipeline.run(parse(given), passes, roundtrip=True)
    made.left = parse(wanted).left
    assert print_module(made) == wanted
    assert difference(made, parse(wanted)) is None
