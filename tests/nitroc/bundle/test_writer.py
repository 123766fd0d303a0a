"""Writing bundles: same parts, same bytes; there whole or not at all; nothing lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_bundle import FORWARD, TRAIN, files, forward, serialize, train_step

from nitro_runtime.bundle import Bundle
from nitroc.bundle import writer
from nitroc.bundle.values import recorded
from nitroc.bundle.writer import write_bundle
from nitroc.errors import BuildError

TESTS = Path(__file__).parents[2]


def _tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_what_is_written_opens(tmp_path: Path) -> None:
    made = files()
    path = write_bundle(made, tmp_path / "new" / "bundle")
    assert _tree(path) == made
    assert Bundle.open(path).path == path
    assert os.listdir(path.parent) == ["bundle"]


def test_F06_the_same_parts_give_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import sys, hashlib; from tiny_bundle import files\n"
        "print(hashlib.sha256(repr(sorted(files().items())).encode()).hexdigest())"
    )
    found = set()
    for seed in ("0", "1"):
        home = tmp_path / seed
        home.mkdir()
        environment = {
            **os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS),
            "HOME": str(home), "USER": f"user{seed}",
        }  # fmt: skip
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=home, env=environment, capture_output=True, check=True
        )
        found.add(run.stdout)
    assert len(found) == 1


def test_the_order_of_parts_does_not_matter() -> None:
    made = files()
    assert files(producer={"a": "1", "b": "2"}) == files(producer={"b": "2", "a": "1"})
    assert files() == made


def _error(tmp: Path, made: dict[str, bytes], name: str = "b", **options: Any) -> BuildError:
    with pytest.raises(BuildError) as caught:
        write_bundle(made, tmp / name, **options)
    assert caught.value.exit == 3
    assert caught.value.help
    assert not [entry for entry in os.listdir(tmp) if entry.endswith(".tmp")]
    return caught.value


@pytest.mark.parametrize("kind", ["bundle", "folder", "file", "link"])
def test_an_existing_name_is_never_overwritten(tmp_path: Path, kind: str) -> None:
    made = files()
    target = tmp_path / "b"
    {
        "bundle": lambda: write_bundle(made, target),
        "folder": target.mkdir,
        "file": lambda: target.write_text("mine"),
        "link": lambda: target.symlink_to(tmp_path / "nowhere"),
    }[kind]()
    before = _tree(tmp_path)
    assert _error(tmp_path, files(name="Other")).code == "E-BUILD-070"
    assert _tree(tmp_path) == before
    assert os.path.lexists(target)


@pytest.mark.parametrize("moment", ["_write_files", "_rename"])
def test_a_name_taken_meanwhile_is_not_overwritten(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, target = files(), tmp_path / "b"
    real = getattr(writer, moment)

    def late(*args: Any) -> Any:
        target.mkdir()
        return real(*args)

    monkeypatch.setattr(writer, moment, late)
    assert _error(tmp_path, made).code == "E-BUILD-070"
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_force_replaces_a_bundle(
    tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(writer, "_rename", lambda *_: False)
    other = files(name="Other")
    path = write_bundle(files(), tmp_path / "b")
    write_bundle(other, path, force=True)
    assert _tree(path) == other
    assert os.listdir(tmp_path) == ["b"]


def test_force_replaces_a_damaged_bundle_and_an_empty_folder(tmp_path: Path) -> None:
    made = files()
    path = write_bundle(made, tmp_path / "b")
    (path / "host/exp.py").unlink()
    (tmp_path / "empty").mkdir()
    for target in (path, tmp_path / "empty"):
        assert _tree(write_bundle(made, target, force=True)) == made


@pytest.mark.parametrize("name", ["notes.txt", "host/mine.py", "runs/1/log"])
def test_force_keeps_what_is_no_bundles(tmp_path: Path, name: str) -> None:
    made = files()
    path = write_bundle(made, tmp_path / "b")
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_text("mine")
    before = _tree(tmp_path)
    error = _error(tmp_path, made, force=True)
    assert error.code == "E-BUILD-073"
    assert name in error.what
    assert _tree(tmp_path) == before


def test_force_keeps_a_foreign_directory_and_a_file(tmp_path: Path) -> None:
    made = files()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    (tmp_path / "home" / "manifest.json").write_text('{"files": {"thesis.tex": 1}}')
    (tmp_path / "b").write_text("mine")
    before = _tree(tmp_path)
    assert _error(tmp_path, made, "home", force=True).code == "E-BUILD-073"
    assert _error(tmp_path, made, force=True).code == "E-BUILD-073"
    assert _tree(tmp_path) == before


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EACCES, 71), (errno.EROFS, 71), (errno.ENOSPC, 72), (errno.EIO, 72)],
)
@pytest.mark.parametrize("force", [True, False])
def test_a_failure_half_way_leaves_everything_as_it_was(
    tmp_path: Path, number: int, code: int, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = files()
    if force:
        write_bundle(made, tmp_path / "b")
    before = _tree(tmp_path)
    write = writer.write_file

    def failing(path: Path, content: bytes) -> None:
        if path.name == "manifest.json":
            raise OSError(number, os.strerror(number), str(path))
        write(path, content)

    monkeypatch.setattr(writer, "write_file", failing)
    error = _error(tmp_path, files(name="Other"), force=force)
    assert error.code == f"E-BUILD-{code:03d}"
    assert os.strerror(number) in error.what
    assert _tree(tmp_path) == before


def test_a_failed_replacement_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = files()
    write_bundle(made, tmp_path / "b")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if Path(target).name == "b" and "manifest.json" in os.listdir(self) and not taken:
            taken.append(self)
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    taken: list[Path] = []
    monkeypatch.setattr(writer, "_rename", lambda *_: False)
    monkeypatch.setattr(Path, "rename", failing)
    assert _error(tmp_path, files(name="Other"), force=True).code == "E-BUILD-072"
    assert taken
    assert _tree(tmp_path / "b") == made


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert _error(tmp_path, files(), "file/b").code == "E-BUILD-072"


@pytest.mark.parametrize("name", ["", "/", "."])
def test_a_target_without_a_name(name: str) -> None:
    with pytest.raises(BuildError, match="E-BUILD-072"):
        write_bundle({}, name)


def test_a_program_no_loader_accepts_is_not_written() -> None:
    text = TRAIN.replace("func.func private @square", "func.func public @square")
    with pytest.raises(BuildError, match=r"E-BUILD-074: .*one public function main"):
        files(programs=(train_step(text), forward()))


def test_what_assembling_fills_in() -> None:
    manifest = Bundle.from_files(files()).manifest
    assert manifest.requires.stablehlo == "1.13.7"
    assert manifest.portable
    assert manifest.routing.transfer == {"train_step": ("x",), "forward.b4": ("x",)}
    assert [(entry.index, entry.name, entry.kind) for entry in manifest.report] == [
        (0, "loss", "step"),
        (1, "t", "step"),
    ]
    assert manifest.programs["train_step"].donate == ((0, 0), (1, 1))
    assert manifest.programs["train_step"].dims == {"width": 4, "accum": 1, "capacity": 1}


def test_custom_calls_cost_portability() -> None:
    call = "stablehlo.custom_call @lapack_spotrf_ffi(%x) : (tensor<4x3xf32>) -> tensor<4x3xf32>"
    text = FORWARD.replace("stablehlo.multiply %rows, %x : tensor<4x3xf32>", call)
    manifest = Bundle.from_files(files(programs=(train_step(), forward(text)))).manifest
    assert not manifest.portable
    assert manifest.requires.custom_calls == ("lapack_spotrf_ffi",)
    assert serialize(text) != serialize(FORWARD)


class _Plain:
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        ("é", "é"),
        ((1, [2, "x"]), [1, [2, "x"]]),
        ({"a": (1,)}, {"a": [1]}),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (float("nan"), {"repr": "nan"}),
        (float("-inf"), {"repr": "-inf"}),
        (Path("/home/someone/data"), {"repr": "Path('.../data')"}),
        (Path("data/x"), {"repr": "Path('data/x')"}),
        (len, {"repr": "builtins.len"}),
        ({1: 2}, {"repr": "{1: 2}"}),
    ],
)
def test_recorded_values(value: object, expected: object) -> None:
    assert recorded(value) == expected


def test_recorded_values_hold_no_address() -> None:
    assert recorded(_Plain()) == recorded(_Plain())
    assert " at 0x" not in str(recorded([_Plain(), {"a": lambda: 0}]))


def test_recorded_arrays() -> None:
    array = np.arange(6.0).reshape(2, 3)
    entry = recorded(array)
    assert entry == recorded(np.asfortranarray(array))
    assert (entry["dtype"], entry["shape"], len(entry["sha256"])) == ("float64", [2, 3], 64)
    assert recorded(array + 1) != entry
