"""The dialect imports the standard library and lark, and lark only when a text is read."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import nitro_dialect

ROOT = Path(nitro_dialect.__file__).parent


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            found.add((node.module or "").split(".")[0])
    return found


def test_sources_import_the_standard_library_and_lark() -> None:
    files = list(ROOT.rglob("*.py"))
    assert len(files) > 20
    foreign = {
        (path.name, name)
        for path in files
        for name in _imports(path) - sys.stdlib_module_names - {"nitro_dialect"}
    }
    assert foreign == {("syntax.py", "lark"), ("op_reader.py", "lark"), ("tokens.py", "lark")}


def test_importing_and_printing_load_no_parser() -> None:
    code = (
        "import sys, nitro_dialect as d; d.print_module(d.Module('M')); "
        "print([m for m in ('lark', 'numpy', 'jax') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
