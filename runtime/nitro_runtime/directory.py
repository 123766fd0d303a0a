"""Check 1: a bundle's directory, looked at without following a link, and its files read once."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

from nitro_runtime.errors import BundleError
from nitro_runtime.findings import MANIFEST, Finding, refuse

MAX_MANIFEST = 64 * 2**20
MAX_FILE = 256 * 2**30
MAX_FILES = 100_000
MAX_NAME = 1024
MAX_DEPTH = 16


def name_problem(name: str) -> str:
    """Why `name` is not a plain relative file name, or ""."""
    if not name or len(name.encode(errors="replace")) > MAX_NAME:
        return f"a name of {len(name)} characters"
    if name.startswith("/"):
        return "an absolute name"
    if not name.isprintable() or any(char in name for char in '\\:*?"<>|'):
        return "a name with a character that is not plain"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "a name that leaves its directory"
    return "a name with too many folders" if len(parts) > MAX_DEPTH else ""


def check_names(names: list[str], path: str = "") -> list[Finding]:
    """Findings for names that are not plain and relative; `path` is where a manifest has them."""
    expected = "a plain relative name"
    return [
        Finding(MANIFEST if path else repr(name), path, expected, f"{problem}: {name!r}")
        for name in names
        if (problem := name_problem(name))
    ]


def list_files(root: Path) -> dict[str, int]:
    """Size of every file below `root` by its relative name; empty folders are listed as `name/`.

    Raises:
        BundleError: E-BUNDLE-001 for what is no real directory of real files, E-BUNDLE-002 when
            it has no manifest.
    """
    _check_root(root)
    files: dict[str, int] = {}
    findings: list[Finding] = []
    pending = [""]
    while pending and len(files) <= MAX_FILES:
        folder = pending.pop()
        try:
            _list_folder(root, folder, pending, files, findings)
        except OSError as error:
            raise _unreadable(folder or str(root), error) from error
    if len(files) > MAX_FILES:
        findings.append(Finding(str(root), "", f"at most {MAX_FILES} files", "more"))
    if MANIFEST not in files:
        refuse(2, [Finding(MANIFEST, "", "a file", "a folder")])
    if files[MANIFEST] > MAX_MANIFEST:
        size = f"{files[MANIFEST]} bytes"
        findings.append(Finding(MANIFEST, "", f"at most {MAX_MANIFEST} bytes", size))
    refuse(1, [*check_names([name.rstrip("/") for name in files]), *findings])
    return files


def read_file(root: Path, name: str, size: int) -> bytes:
    """The bytes of a file, at most one more than `size`: a longer file is known by that one.

    Raises:
        BundleError: E-BUNDLE-001 when it can't be read or became a link.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(root / name, flags), "rb") as file:
            return file.read(size + 1)
    except OSError as error:
        raise _unreadable(name, error) from error


def _check_root(root: Path) -> None:
    try:
        mode = root.lstat().st_mode
        if stat.S_ISLNK(mode):
            refuse(1, [_special(str(root), "a link", "give the directory that the link leads to")])
        if not stat.S_ISDIR(mode):
            refuse(1, [_special(str(root), "a file")])
        (root / MANIFEST).lstat()
    except FileNotFoundError as error:
        if error.filename == str(root):
            refuse(1, [Finding(str(root), "", "a bundle's directory", "nothing of this name")])
        refuse(2, [Finding(str(root), "", f"a {MANIFEST}", "none: this is not a bundle")])
    except OSError as error:
        raise _unreadable(str(root), error) from error


def _list_folder(
    root: Path, folder: str, pending: list[str], files: dict[str, int], findings: list[Finding]
) -> None:
    entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    if folder and not entries:
        files[folder + "/"] = 0
    for entry in entries:
        name = str(PurePosixPath(folder) / entry.name)
        info = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            pending.append(name)
            continue
        files[name] = info.st_size
        if stat.S_ISLNK(info.st_mode):
            findings.append(_special(name, "a symbolic link", "copy the file it leads to"))
        elif not stat.S_ISREG(info.st_mode):
            findings.append(_special(name, "a special file"))
        elif info.st_size > MAX_FILE:
            size = f"{info.st_size} bytes"
            findings.append(Finding(name, "", f"at most {MAX_FILE} bytes", size))


def _special(name: str, found: str, action: str = "") -> Finding:
    return Finding(name, "", "a real directory of real files", found, action)


def _unreadable(name: str, error: OSError) -> BundleError:
    return BundleError(
        1, f"can't be read: {error.strerror or error}", where=name, help="check its permissions"
    )
