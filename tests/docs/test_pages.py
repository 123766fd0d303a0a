"""The site: every code block of every page runs and prints what stands under it, and it builds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import blocks, run
from command_line import own_imports

from nitro_dialect.op import OPS
from nitroc.error_pages import codes
from nitroc.passes.pipeline import PASSES

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
OURS = ("python", "console", "nir", "text")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_does_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with own_imports():
        for outcome in run(blocks(page.read_text(encoding="utf-8")), tmp_path, "page.py"):
            said = f"{page.name}:{outcome.block.line}"
            assert outcome.agrees(), f"{said} expected:\n{outcome.expected}\n{outcome.printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_block_is_left_out(page: Path) -> None:
    """A block is of a kind that is run, or what the one before it prints; installing is neither."""
    found = blocks(page.read_text(encoding="utf-8"))
    for before, block in zip([None, *found], found, strict=False):
        if block.text.startswith("pip install "):
            continue
        assert block.language in OURS, f"{page.name}:{block.line}"
        follows = before is not None and before.language in ("python", "nir") and not before.title
        assert block.language != "text" or follows, f"{page.name}:{block.line}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as mkdocs builds them; a link that leads nowhere fails."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def anchors(site: Path, page: str) -> set[str]:
    return set(re.findall(r' id="([^"]+)"', (site / f"{page}.html").read_text(encoding="utf-8")))


def test_the_ir_page_has_every_op_and_every_constraint(site: Path) -> None:
    found = anchors(site, "ir")
    text = (site / "ir.html").read_text(encoding="utf-8")
    for name, cls in OPS.items():
        assert f"<code>{name}</code>" in text
        alike = [each for each in OPS.values() if each.__doc__ == cls.__doc__]
        for label in re.findall(r"\((C\d+)\)", cls.__doc__ or ""):
            shown = f"{alike[0].mnemonic.replace('.', '_')}_{label.lower()}"
            assert shown in found


def test_the_passes_page_has_every_pass(site: Path) -> None:
    assert set(PASSES) <= anchors(site, "passes")


def test_the_error_page_has_every_code(site: Path) -> None:
    assert set(codes()) <= anchors(site, "errors")


def test_the_schema_is_beside_the_pages(site: Path) -> None:
    schema = "manifest.schema.json"
    assert (site / schema).read_bytes() == (ROOT / "docs" / schema).read_bytes()
    assert not list(site.glob("*.py"))
