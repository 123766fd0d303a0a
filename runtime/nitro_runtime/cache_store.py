"""Executables on disk: one file each, a line of JSON and the serialised executable.

The line holds the digest of the bytes, which are machine code: nothing of a file is used before
the digest agrees, and no directory that others may write to is used at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nitro_runtime.cache_reasons import Ingredients

_FORMAT = 1
_SUFFIX = ".executable"


def user_directory() -> Path | None:
    """`nitroc` under XDG_CACHE_HOME, else under `~/.cache`; None for a user without a home."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given and os.path.isabs(given):
        return Path(given, "nitroc")
    try:
        return Path.home() / ".cache" / "nitroc"
    except RuntimeError:  # pathlib's way of saying that there is no home
        return None


class Store:
    """The entries of one directory; None stores nothing.

    What goes wrong is said in one line and never raised: a store only saves time. `damaged` tells
    whether an entry that was looked up could not be used.
    """

    def __init__(self, directory: Path | None, say: Callable[[str], None]) -> None:
        self.damaged = False
        self._say = say
        self.directory = directory
        if directory is not None and directory.is_dir() and not _only_ours(directory):
            say(f"compile cache: {directory} is not used, others may write to it")
            self.directory = None

    def read(self, role: str, key: str) -> bytes | None:
        """The executable stored under `key`, its digest checked, or None."""
        path = self._path(role, key)
        if path is None or not path.exists():
            return None
        try:
            line, _, serialized = path.read_bytes().partition(b"\n")
        except OSError as error:
            return self._refuse(path, str(error))
        head = _head(line)
        if head is None or head.get("key") != key:
            return self._refuse(path, "not an entry of this version")
        if head.get("sha256") != hashlib.sha256(serialized).hexdigest():
            return self._refuse(path, "its digest differs")
        return serialized

    def write(self, role: str, key: str, ingredients: Ingredients, serialized: bytes) -> None:
        """Stores an executable, replacing an entry of that key at once."""
        path = self._path(role, key)
        if path is None:
            return
        head = {
            "format": _FORMAT,
            "key": key,
            "sha256": hashlib.sha256(serialized).hexdigest(),
            "named": dict(ingredients.named),
            "made_for": dict(ingredients.made_for),
        }
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(path, json.dumps(head).encode() + b"\n" + serialized)
        except OSError as error:
            self._say(f"compile cache: nothing is stored in {path.parent}: {error}")

    def ingredients(self, role: str, *, but: str) -> list[Ingredients]:
        """The ingredients of every stored program of `role` except that of key `but`."""
        if self.directory is None:
            return []
        found = (_read_head(p) for p in sorted(self.directory.glob(f"{role}-*{_SUFFIX}")))
        heads = (head for head in found if head is not None and head.get("key") != but)
        return [Ingredients(head["named"], head["made_for"]) for head in heads]

    def clear(self) -> None:
        """Deletes every entry, and nothing else."""
        if self.directory is None:
            return
        for path in self.directory.glob(f"*{_SUFFIX}"):
            path.unlink(missing_ok=True)

    def _path(self, role: str, key: str) -> Path | None:
        return None if self.directory is None else self.directory / f"{role}-{key}{_SUFFIX}"

    def _refuse(self, path: Path, why: str) -> None:
        self.damaged = True
        self._say(f"compile cache: {path.name[:20]}... is not used, {why}; compiling again")


def _only_ours(directory: Path) -> bool:
    """Whether only this user writes to the directory: loading an entry runs its code."""
    if not hasattr(os, "getuid"):
        return True
    status = directory.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _head(line: bytes) -> dict[str, Any] | None:
    """The line's entries, or None where it is no line of this version."""
    try:
        head = json.loads(line)
    except ValueError:
        return None
    known = isinstance(head, dict) and head.get("format") == _FORMAT
    return head if known else None


def _read_head(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            return _head(file.readline())
    except OSError:  # deleted meanwhile by another process
        return None


def _replace(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
