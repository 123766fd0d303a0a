"""One process that opens bundles and builds files of one name: each gets its own Python."""

from __future__ import annotations

from pathlib import Path

from command_line import own_imports, write

import nitroc as nt


def test_a_file_is_read_anew_after_a_bundle_of_its_name_was_opened(tmp_path: Path) -> None:
    with own_imports():
        first = write(tmp_path / "one" / "exp.py")
        bundle = nt.build(str(first), tmp_path / "bundle")
        opened = nt.open_bundle(bundle, quiet=True, run_dir=str(tmp_path / "run"))
        second = write(tmp_path / "two" / "exp.py", ("class Line(", "class Other("))
        assert "module @Other " in nt.ir(str(second))
        write(first, ("power: nt.GraphConst[int] = ", "power: nt.GraphConst[int] = 1 + "))
        assert "GraphConst 2" in nt.explain(str(first))
        assert opened.train().stop_reason == "completed"
        again = nt.open_bundle(bundle, quiet=True, run_dir=str(tmp_path / "again"))
        assert type(again.experiment).__name__ == "Line"
