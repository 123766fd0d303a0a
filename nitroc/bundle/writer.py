"""A bundle's directory: there whole, under its name, or not at all.

Files go to a unique name beside the target, everything is fsynced, and one rename puts it in place.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from nitro_runtime.canonical import CanonicalError, parse
from nitro_runtime.durable import fsync_directory, temp_name, write_file
from nitro_runtime.findings import MANIFEST
from nitroc.errors import BuildError

_NOREPLACE, _EXCHANGE = 1, 2
_AT_FDCWD = -100
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def write_bundle(files: Mapping[str, bytes], directory: Path | str, *, force: bool = False) -> Path:
    """Writes `files` as the bundle `directory` and returns its path.

    `force` replaces a bundle that is there: readers see the old one or the new one, whole.

    Raises:
        BuildError: 70 the name exists; 71 no permission; 72 the file system refused; 73 `force`
            and what is there is no bundle. Whatever was on disk before is still there.
    """
    target = Path(directory)
    check_target(target, force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temp = target.with_name(temp_name(target.name))
        try:
            _write_files(temp, files)
            _publish(temp, target, force)
        finally:
            shutil.rmtree(temp, ignore_errors=True)
        fsync_directory(target.parent)
    except OSError as error:
        raise _refused(target, error) from error
    return target


def check_target(directory: Path | str, force: bool) -> None:
    """Refuses a name that no bundle can be written to, as `write_bundle` would."""
    target = Path(directory)
    if not target.name:
        raise BuildError(72, f"{target} names no new directory", help="give the bundle a name")
    if not os.path.lexists(target):
        return
    if not force:
        raise _exists(target)
    if target.is_symlink() or not target.is_dir():
        raise BuildError(
            73,
            "--force replaces bundles only, and there is no directory of that name",
            where=str(target),
            help="choose a new name, or remove what is there",
        )
    foreign = _foreign_files(target)
    if foreign:
        raise BuildError(
            73,
            f"--force would delete files that are no part of a bundle: {', '.join(foreign[:5])}",
            where=str(target),
            help="choose a new name, or move those files away",
        )


def _foreign_files(target: Path) -> list[str]:
    """Files below `target` that its manifest does not list: all of them without a manifest."""
    listed: set[str] = set()
    try:
        manifest = parse((target / MANIFEST).read_bytes())
        listed = {MANIFEST, *manifest["files"]} if "format" in manifest else set()
    except (OSError, CanonicalError, TypeError, KeyError):
        pass  # no manifest, or one that lists nothing: everything there is foreign
    found = (path for path in target.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(
        name for path in found if (name := path.relative_to(target).as_posix()) not in listed
    )


def _write_files(temp: Path, files: Mapping[str, bytes]) -> None:
    temp.mkdir()
    folders = {temp}
    for name in sorted(files):
        path = temp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.update(parent for parent in path.parents if parent.is_relative_to(temp))
        write_file(path, files[name])
    for folder in folders:
        fsync_directory(folder)


def _publish(temp: Path, target: Path, force: bool) -> None:
    """Renames; with `force` and something there, exchanges the two and leaves the old as `temp`."""
    if not os.path.lexists(target):
        if not _rename(temp, target, _NOREPLACE):
            temp.rename(target)
        return
    if not force:
        raise _exists(target)
    if _rename(temp, target, _EXCHANGE):
        return
    # No atomic exchange on this system: the old bundle is kept under another name meanwhile.
    aside = target.with_name(temp_name(target.name))
    target.rename(aside)
    try:
        temp.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _rename(source: Path, target: Path, flags: int) -> bool:
    """Linux's `renameat2`; False where the system or the file system lacks it."""
    if sys.platform != "linux":
        return False
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    if function(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(target))


def _exists(target: Path) -> BuildError:
    return BuildError(
        70,
        "the output exists",
        where=str(target),
        help="choose a new name, or pass --force to replace the bundle there",
    )


def _refused(target: Path, error: OSError) -> BuildError:
    if error.errno == errno.EEXIST and os.path.lexists(target):
        return _exists(target)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return BuildError(
            71,
            f"no permission to write there: {error.strerror}",
            where=str(target),
            help=f"choose a directory of yours, or change the permissions of {target.parent}",
        )
    return BuildError(
        72,
        f"the bundle could not be written: {error.strerror or error}",
        where=str(target),
        help="free space or choose another place; nothing was left behind",
    )
