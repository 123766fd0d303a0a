"""Every code of every table has an example, and every example raises just that code."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blocks import Block, blocks, run
from command_line import own_imports, succeed

import nitroc as nt
from nitroc import error_pages
from nitroc.error_pages import CODE, codes, sections

SECTIONS = {
    code: text
    for area in error_pages.areas()
    for code, text in sections(error_pages.page(area)).items()
}
START = [block for block in blocks(error_pages.page("index")) if block.title]
RUNNABLE = ("python", "console", "nir")


def runnable(found: list[Block]) -> bool:
    return any(block.language in RUNNABLE and not block.title for block in found)


RUN = {code: blocks(text) for code, text in SECTIONS.items() if runnable(blocks(text))}


def test_every_code_has_a_section_and_every_section_a_code() -> None:
    assert set(SECTIONS) == set(codes())
    folder = Path(error_pages.__file__).parent / "pages"
    assert {path.stem for path in folder.iterdir()} == {*error_pages.areas(), "index"}


@pytest.mark.parametrize("area", error_pages.areas())
def test_sections_stand_on_their_area_s_page_in_order(area: str) -> None:
    found = list(sections(error_pages.page(area)))
    assert found == sorted(code for code in codes() if error_pages.area(code) == area)


def test_nearly_every_example_is_run() -> None:
    shown = {"E-DEVICE-029", "E-RUN-005"}
    assert set(SECTIONS) - set(RUN) == shown
    for code in shown:
        (block,) = blocks(SECTIONS[code])
        assert code in block.text


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the pages start from."""
    folder = tmp_path_factory.mktemp("made")
    for block in START:
        (folder / block.title).write_text(block.text, encoding="utf-8")
    with own_imports(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        succeed("build", "base.py", "-o", "bundle/", "-q")
        succeed("run", "bundle/", "-q")
    return folder


@pytest.mark.parametrize("code", RUN)
def test_an_example_prints_what_its_page_shows(
    code: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with own_imports():
        outcomes = list(run(RUN[code], tmp_path, "exp.py", names()))
    for outcome in outcomes:
        assert outcome.agrees(), f"expected:\n{outcome.expected}\nprinted:\n{outcome.printed}"
    assert CODE.findall(outcomes[-1].printed)[0] == code


def names() -> dict[str, Any]:
    base = importlib.import_module("base")
    return {"nt": nt, "np": np, "jnp": jnp, "jax": jax, "Base": base.Base}


def test_explain_prints_the_example_between_cause_and_fix() -> None:
    text = nt.explain("e-field-004")
    assert text.splitlines() == [
        "E-FIELD-004: a class attribute looks like a field and is none",
        "",
        "cause: Only annotated names become fields; the value would bind nowhere.",
        "example:",
        "  class Mine(Base):",
        "      width = 3",
        "",
        "  E-FIELD-004: width = 3 looks like a field but has no annotation; Mine.width (exp.py:2)",
        "  help: annotate it, width: nt.GraphConst[int] = ..., or start its name with an "
        "underscore",
        f"  ({error_pages.START})",
        "fix: Annotate it, or start its name with an underscore.",
    ]
    assert error_pages.START not in nt.explain("E-IR-003")


PAGE = """# E-X: a page

## E-X-001

Prose.

```python title="exp.py"
x = 1
```

```text
E-X-001: said
```

## E-X-002
"""


def test_reading_a_page() -> None:
    found = sections(PAGE)
    assert list(found) == ["E-X-001", "E-X-002"]
    assert found["E-X-002"] == "\n"
    assert blocks(PAGE) == [
        Block("python", "exp.py", "x = 1\n", 7),
        Block("text", "", "E-X-001: said\n", 11),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nx = 1\n", "line 1: a fence that is not closed"),
        ("x\n```py thon\n```\n", "line 2: a fence that can't be read"),
    ],
)
def test_a_malformed_fence_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        blocks(text)


@pytest.mark.parametrize("text", ["## Notes\n", "## E-X-001\n## E-X-001\n"])
def test_a_wrong_heading_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="a heading that is no code, or one given twice"):
        sections(text)


def test_modules_of_examples_leave_no_trace() -> None:
    assert not {"base", "exp", "program", "reseal"} & set(sys.modules)
