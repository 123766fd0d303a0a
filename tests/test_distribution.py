"""One distribution, three import packages: the wheel holds them and runs without the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_three_packages_and_imports(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    tops = {name.split("/")[0] for name in names if not name.startswith("nitroc-")}
    assert tops == {"nitroc", "nitro_dialect", "nitro_runtime"}
    assert {"nitro_dialect/nitro.lark", "nitroc/pages/FIELD.md"} <= set(names)
    site = str(tmp_path / "site")
    check = (
        "import sys; sys.path.insert(0, sys.argv[1]); import nitroc, nitro_dialect, nitro_runtime;"
        'nitro_dialect.parse(\'module @A version 1 pipeline "" left "" {\\n}\\n\');'
        "print(nitroc.__file__, nitro_dialect.__file__, nitro_runtime.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check, site],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.count(site) == 3
