"""Damaged, foreign and hostile bundles on disk: the right code, before any program is parsed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_bundle import files, sealed

from nitro_runtime import artifact, directory
from nitro_runtime.bundle import Bundle
from nitro_runtime.canonical import dump, parse
from nitro_runtime.errors import BundleError
from nitroc.bundle.writer import write_bundle

MANIFEST = "manifest.json"


@pytest.fixture(autouse=True)
def no_parser(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing in this file may get as far as looking at a program."""

    def parsed(*_: object) -> None:
        raise AssertionError("a program was looked at")

    with monkeypatch.context() as patch:
        patch.setattr(artifact, "header_version", parsed)
        patch.setattr(artifact, "inspect", parsed)
        yield


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return files()


@pytest.fixture
def bundle(tmp_path: Path, made: dict[str, bytes]) -> Path:
    return write_bundle(made, tmp_path / "bundle")


def _refusal(path: Path) -> BundleError:
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    assert caught.value.exit == 3
    assert caught.value.help
    return caught.value


def test_a_good_bundle_gets_as_far_as_its_programs(bundle: Path) -> None:
    with pytest.raises(AssertionError, match="a program was looked at"):
        Bundle.open(bundle)


def test_F05_every_flipped_byte_of_the_manifest(made: dict[str, bytes]) -> None:
    text = made[MANIFEST]
    for at in range(len(text)):
        bit = 1 << at % 8
        damaged = text[:at] + bytes([text[at] ^ bit]) + text[at + 1 :]
        with pytest.raises(BundleError) as caught:
            Bundle.from_files({**made, MANIFEST: damaged})
        assert caught.value.code in {f"E-BUNDLE-{n:03d}" for n in (1, 2, 3, 4)}, (at, bit)


@pytest.mark.parametrize("space", [b"\n", b" "])
def test_F05_white_space(bundle: Path, made: dict[str, bytes], space: bytes) -> None:
    (bundle / MANIFEST).write_bytes(made[MANIFEST] + space)
    error = _refusal(bundle)
    assert error.code == "E-BUNDLE-004"
    assert "canonical" in error.what


def test_F05_a_flipped_byte_of_any_file(bundle: Path, made: dict[str, bytes]) -> None:
    draw = random.Random(0)
    for name in sorted(made.keys() - {MANIFEST}):
        for at in draw.sample(range(len(made[name])), min(8, len(made[name]))):
            damaged = bytearray(made[name])
            damaged[at] ^= 1 << draw.randrange(8)
            (bundle / name).write_bytes(damaged)
            error = _refusal(bundle)
            assert (error.code, error.where) == ("E-BUNDLE-006", name)
            assert "sha256" in error.what
        (bundle / name).write_bytes(made[name])


@pytest.mark.parametrize("size", [0, 1, -1])
def test_F05_a_truncated_or_longer_file(bundle: Path, made: dict[str, bytes], size: int) -> None:
    name = "programs/train_step.shlo"
    content = made[name] + b"x" if size == 1 else made[name][:size]
    (bundle / name).write_bytes(content)
    error = _refusal(bundle)
    assert (error.code, error.where) == ("E-BUNDLE-006", name)
    assert f"{len(made[name])} bytes, found {len(content)} bytes" in error.what


def test_F05_a_truncated_manifest(bundle: Path, made: dict[str, bytes]) -> None:
    (bundle / MANIFEST).write_bytes(made[MANIFEST][: len(made[MANIFEST]) // 2])
    assert _refusal(bundle).code == "E-BUNDLE-002"


def _edited(made: dict[str, bytes], edit: Callable[[Any], None], seal: bool) -> bytes:
    if seal:
        return sealed(made, edit)[MANIFEST]
    value = parse(made[MANIFEST])
    edit(value)
    return dump(value)


@pytest.mark.parametrize("seal", [True, False])
def test_F05_an_unknown_key(bundle: Path, made: dict[str, bytes], seal: bool) -> None:
    def edit(value: Any) -> None:
        value["pipelines"] = "x"

    (bundle / MANIFEST).write_bytes(_edited(made, edit, seal))
    error = _refusal(bundle)
    assert error.code == "E-BUNDLE-004"
    assert "$.pipelines: expected 'pipeline', found an unknown key" in error.what


@pytest.mark.parametrize("seal", [True, False])
@pytest.mark.parametrize(("major", "minor"), [(2, 0), (1, 2), (0, 9), (1, -1), ("1", 0), (True, 0)])
def test_F05_another_format(
    bundle: Path, made: dict[str, bytes], seal: bool, major: Any, minor: Any
) -> None:
    def edit(value: Any) -> None:
        value["format"] = {"major": major, "minor": minor}
        value["a key of the future"] = 1

    (bundle / MANIFEST).write_bytes(_edited(made, edit, seal))
    error = _refusal(bundle)
    assert error.code == "E-BUNDLE-003"
    assert "format 1.1" in error.what
    if type(major) is int:
        assert f"format {major}.{minor}" in error.what


NAMES = [
    "../x",
    "/etc/passwd",
    "a/../b",
    "./a",
    "a//b",
    "a/",
    "",
    "C:\\x",
    "a\\b",
    "a\nb",
    "a" * 2000,
]


@pytest.mark.parametrize("seal", [True, False])
@pytest.mark.parametrize("name", [*NAMES, "a/" * 20 + "b"])
def test_F05_a_name_that_leads_out(
    bundle: Path, made: dict[str, bytes], seal: bool, name: str
) -> None:
    (bundle.parent / "x").write_bytes(made["host/exp.py"])

    def edit(value: Any) -> None:
        value["files"][name] = value["files"].pop("host/exp.py")

    (bundle / MANIFEST).write_bytes(_edited(made, edit, seal))
    error = _refusal(bundle)
    assert error.code == "E-BUNDLE-001"
    assert error.what.startswith("$.files: ")
    with pytest.raises(BundleError, match="E-BUNDLE-001"):
        Bundle.from_files({**made, name: b""})


@pytest.mark.parametrize("inside", [True, False])
def test_F05_a_linked_file(bundle: Path, inside: bool) -> None:
    name = "weights/init.safetensors"
    target = bundle / "copy" if inside else bundle.parent / "copy"
    (bundle / name).rename(target)
    (bundle / name).symlink_to(target)
    error = _refusal(bundle)
    assert (error.code, error.where) == ("E-BUNDLE-001", name)
    assert "symbolic link" in error.what


def test_F05_a_linked_folder_and_a_linked_bundle(bundle: Path) -> None:
    link = bundle.parent / "link"
    link.symlink_to(bundle)
    error = _refusal(link)
    assert error.code == "E-BUNDLE-001"
    assert "link" in error.what
    (bundle / "host").rename(bundle.parent / "host")
    (bundle / "host").symlink_to(bundle.parent / "host")
    assert _refusal(bundle).where == "host"


def test_a_linked_manifest(bundle: Path) -> None:
    (bundle / MANIFEST).rename(bundle.parent / MANIFEST)
    (bundle / MANIFEST).symlink_to(bundle.parent / MANIFEST)
    assert _refusal(bundle).code == "E-BUNDLE-001"


def test_a_file_that_becomes_a_link_is_not_followed(bundle: Path) -> None:
    name = "host/exp.py"
    (bundle / name).rename(bundle.parent / "exp.py")
    (bundle / name).symlink_to(bundle.parent / "exp.py")
    with pytest.raises(BundleError, match="E-BUNDLE-001"):
        directory.read_file(bundle, name, 100)


def test_a_special_file(bundle: Path) -> None:
    os.mkfifo(bundle / "host" / "pipe")
    error = _refusal(bundle)
    assert error.code == "E-BUNDLE-001"
    assert "special file" in error.what


@pytest.mark.parametrize("name", ["notes.txt", "host/other.py", "programs/x.shlo", ".hidden"])
def test_F05_an_extra_file(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes(b"")
    error = _refusal(bundle)
    assert (error.code, error.where) == ("E-BUNDLE-005", name)


def test_F05_an_extra_folder(bundle: Path) -> None:
    (bundle / "runs").mkdir()
    assert _refusal(bundle).code == "E-BUNDLE-005"


def test_F05_missing_files_are_all_named(bundle: Path) -> None:
    (bundle / "host/exp.py").unlink()
    (bundle / "ir/import.nir").unlink()
    error = _refusal(bundle)
    assert error.code == "E-BUNDLE-005"
    assert error.where == "host/exp.py"
    assert error.also == (
        "ir/import.nir: expected a file, found none",
        "host/: expected no file, found one",
    )


def test_not_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "exp.py"
    file.write_text("x = 1\n")
    assert _refusal(file).code == "E-BUNDLE-001"
    assert "a file" in _refusal(file).what
    assert "nothing of this name" in _refusal(tmp_path / "none").what
    assert _refusal(file / "below").code == "E-BUNDLE-001"


def test_a_foreign_directory(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    error = _refusal(empty)
    assert error.code == "E-BUNDLE-002"
    assert "this is not a bundle" in error.what
    (tmp_path / "link").symlink_to(empty)
    assert _refusal(tmp_path).code == "E-BUNDLE-002"


@pytest.mark.parametrize(
    ("text", "code"),
    [(b"[]", 2), (b"{}", 3), (b'{"name": "web-app", "version": "1"}', 3), (b"\xff\xfe", 2)],
)
def test_a_foreign_manifest(tmp_path: Path, text: bytes, code: int) -> None:
    (tmp_path / MANIFEST).write_bytes(text)
    assert _refusal(tmp_path).code == f"E-BUNDLE-{code:03d}"


def test_a_manifest_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    assert _refusal(tmp_path).code == "E-BUNDLE-002"


def test_size_limits(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_MANIFEST", 100)
    assert _refusal(bundle).where == MANIFEST
    monkeypatch.undo()
    monkeypatch.setattr(directory, "MAX_FILES", 3)
    assert "at most 3 files" in _refusal(bundle).what


def test_an_unreadable_file(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    error = _refusal(bundle)
    assert error.code == "E-BUNDLE-001"
    assert "Permission denied" in error.what
