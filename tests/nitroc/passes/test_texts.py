"""What each pass does, as text: a run line, a module, the module after.

`tests/ir/<pass>.nir` is the plain case, `<pass>_<what>.nir` further ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nitro_dialect import difference, parse, print_module
from nitroc.passes import pipeline

GIVES = "// gives:\n"
TEXTS = {
    path.stem: path
    for path in sorted((Path(__file__).parents[2] / "ir").glob("*.nir"))
    if GIVES in path.read_text("utf-8")
}


def test_every_pass_has_a_text() -> None:
    assert pipeline.PASSES.keys() - TEXTS.keys() == set()


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str) -> None:
    head, _, wanted = TEXTS[name].read_text("utf-8").partition(GIVES)
    line, _, given = head.partition("\n")
    passes = pipeline.parse(line.removeprefix("// run: "))
    assert [p.name for p in passes] == [name.partition("_")[0]]
    made = pipeline.run(parse(given), passes, roundtrip=True)
    made.left = parse(wanted).left
    assert print_module(made) == wanted
    assert difference(made, parse(wanted)) is None
