"""Files that are complete or absent: temp name, fsync, atomic rename."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_TRANSIENT = frozenset({errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ESTALE})
_TRIES = 5
_FIRST_DELAY = 0.05


def temp_name(name: str) -> str:
    """A unique hidden name beside `name`, which `stale_temps` recognises."""
    return f".{name}.{secrets.token_hex(4)}.tmp"


def stale_temps(directory: Path) -> list[Path]:
    """What writers that died left in `directory`."""
    return sorted(directory.glob(".*.tmp")) if directory.is_dir() else []


def fsync_file(path: Path) -> None:
    """Makes a file's content durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_directory(path: Path) -> None:
    """Makes a directory's entries durable, where the system can."""
    if os.name == "nt":
        return
    fsync_file(path)


def write_file(path: Path, content: bytes) -> None:
    """Writes and fsyncs `path`; the caller renames it, or its directory, into place."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Puts `content` at `path` atomically: a reader sees the old file or the new one, whole."""
    temp = path.with_name(temp_name(path.name))
    try:
        if sync:
            write_file(temp, content)
        else:
            temp.write_bytes(content)
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    if sync:
        fsync_directory(path.parent)


def retrying(work: Callable[[], T], say: Callable[[str], None]) -> T:
    """`work()`, tried up to 5 times with a doubling delay while the store says "later"."""
    delay = _FIRST_DELAY
    for attempt in range(1, _TRIES + 1):
        try:
            return work()
        except OSError as error:
            if error.errno not in _TRANSIENT or attempt == _TRIES:
                raise
            say(f"writing failed ({error}), trying again in {delay:g} s")
            time.sleep(delay)
            delay *= 2
    raise AssertionError("the last try returns or raises")
