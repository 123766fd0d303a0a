# pyright: basic
"""Source locations of imported functions: user code only, with paths relative to the project.

A location becomes its op's name around the user's frames (`exp.py:41:5`, called from ...); what is
between the hook's caller and the process's start is cut, so the same experiment gives the same
bytes from a command, a notebook and a test.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import PurePath
from typing import Any

import nitro_dialect
import nitro_runtime
import nitroc
from nitroc.frontend.jax_internals import ir

_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\](.*)")
_NITRO = ("nitroc", "nitro_runtime", "nitro_dialect")

_BETWEEN = "nitroc/frontend/mark"
"""Files of ours with frames inside the user's code: marks, and what they wrap of jax."""


def is_user_file(filename: str, root: str | None) -> bool:
    """Whether a person wrote it: no library, no standard library, not this compiler."""
    if filename.startswith("<frozen") or _nitro_path(filename) is not None:
        return False
    if _below(filename, root) is not None:
        return True
    return not _PACKAGES.match(filename) and _below(filename, _stdlib()) is None


def relative_path(filename: str, root: str | None) -> str:
    """Relative to the project root, else to the package folder or library, else the bare name."""
    nitro = _nitro_path(filename)
    if nitro is not None:
        return nitro
    inside = _below(filename, root)
    if inside is not None:
        return inside
    package = _PACKAGES.match(filename)
    if package:
        return PurePath(package[1]).as_posix()
    return _below(filename, _stdlib()) or os.path.basename(filename)


def user_line(location: Any, root: str | None) -> str | None:
    """`exp.py:41` of the innermost user frame of an op's location; None when it has none."""
    for file, line, *_ in _frames(location):
        if is_user_file(file, root):
            return f"{relative_path(file, root)}:{line}"
    return None


def op_name(location: Any) -> str:
    """The name jax gave the op (`jit(objective)/dot_general`); empty when there is none.

    jax nests names, the innermost being the longest; one right around a file names its function.
    """
    name = ""
    while isinstance(location, ir.NameLoc) and not isinstance(
        location.child_loc, ir.FileLineColLoc
    ):
        name, location = location.name_str, location.child_loc
    return name


def of_imported(location: Any) -> tuple[str, str | None]:
    """The op's name (`jit(objective)/dot_general`) and innermost line `exp.py:41:5`, of a location
    that `make_relative` made; columns from 1, as in the sources of marks."""
    name = location.name_str if isinstance(location, ir.NameLoc) else ""
    frame = next(_frames(location), None)
    return name, None if frame is None else f"{frame[0]}:{frame[1]}:{frame[2] + 1}"


def make_relative(module: Any, root: str | None) -> None:
    """Rewrites every location in `module`: no absolute path and no foreign frame is left."""

    def visit(op: Any) -> Any:
        op.operation.location = _rewritten(op.operation.location, root)
        for region in op.operation.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    argument.set_location(_rewritten(argument.location, root))
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)


def _rewritten(location: Any, root: str | None) -> Any:
    frames = [_frame_location(frame, root) for frame in _kept(location, root)]
    child = ir.Location.unknown()
    if len(frames) == 1:
        child = frames[0]
    elif frames:
        child = ir.Location.callsite(frames[0], frames[1:])
    name = op_name(location)
    return ir.Location.name(name, child) if name else child


def _kept(location: Any, root: str | None) -> list[tuple[str, int, int, int, int]]:
    frames = []
    for frame in _frames(location):
        path = _nitro_path(frame[0]) or ""
        if path.startswith(_BETWEEN):
            continue
        if path.startswith("nitroc/frontend/"):
            break
        frames.append(frame)
    written = [frame for frame in frames if is_user_file(frame[0], root)]
    return written or frames[:1]


def _frame_location(frame: tuple[str, int, int, int, int], root: str | None) -> Any:
    file, line, column, end_line, end_column = frame
    return ir.Location.file(relative_path(file, root), line, column, end_line, end_column)


def _frames(location: Any) -> Iterator[tuple[str, int, int, int, int]]:
    match location:
        case ir.NameLoc():
            yield from _frames(location.child_loc)
        case ir.CallSiteLoc():
            yield from _frames(location.callee)
            yield from _frames(location.caller)
        case ir.FusedLoc():
            for inner in location.locations:
                yield from _frames(inner)
        case ir.FileLineColLoc():
            yield (
                location.filename,
                location.start_line,
                location.start_col,
                location.end_line,
                location.end_col,
            )


@cache
def _stdlib() -> str:
    return os.path.realpath(sysconfig.get_paths()["stdlib"])


@cache
def _nitro_folders() -> tuple[tuple[str, str], ...]:
    modules = (nitroc, nitro_runtime, nitro_dialect)
    folders = (os.path.dirname(os.path.abspath(str(module.__file__))) for module in modules)
    return tuple(zip(_NITRO, folders, strict=True))


@cache
def _nitro_path(filename: str) -> str | None:
    for name, folder in _nitro_folders():
        inside = _below(filename, folder)
        if inside is not None:
            return f"{name}/{inside}"
    return None


@cache
def _below(filename: str, folder: str | None) -> str | None:
    if folder is None or filename.startswith("<"):
        return None
    path, base = os.path.realpath(filename), os.path.realpath(folder)
    if not path.startswith(base + os.sep):
        return None
    inside = os.path.relpath(path, base)
    return None if _PACKAGES.match(os.sep + inside) else PurePath(inside).as_posix()
