"""The text of a program is the experiment's alone, whatever hashes, folders, traces before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from networks import LIBRARIES

TESTS = Path(__file__).parents[2]
SCRIPT = """
import sys
import nitroc as nt

assert nt.nn.linen and not {"flax", "equinox"} & set(sys.modules), "imported when used"
found = {
    name: nt.ir("exp.py:Network", stablehlo=True, settings={"library": name, "rate": "0.3"})
    for name in sys.argv[1:]
}
for name in sorted(found):
    print(found[name])
"""


def text(folder: Path, seed: int, order: tuple[str, ...]) -> str:
    """What a process in `folder` prints, which reads copies of the networks there."""
    folder.mkdir(parents=True)
    for name, of in {"exp": "networks", "whole": "whole", "journal": "journal"}.items():
        (folder / f"{name}.py").write_bytes((TESTS / f"{of}.py").read_bytes())
    (folder / "print_text.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "print_text.py", *order],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_text_is_the_same_for_every_hash_seed_folder_and_order(tmp_path: Path) -> None:
    one = text(tmp_path / "one", 1, LIBRARIES)
    other = text(tmp_path / "a b" / "other", 2, LIBRARIES[::-1])
    assert one.count("func.func public @main") == len(LIBRARIES)
    assert one == other
