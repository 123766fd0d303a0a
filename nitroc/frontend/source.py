"""Where user code is: `file:line` of functions, and of the user's line that is running."""

from __future__ import annotations

import inspect
import os
import sys
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

_FRAMEWORKS = ("jax", "jaxlib", "flax", "equinox", "optax", "nitroc", "nitro_runtime")
_INTERPRETER = ("functools", "contextlib", "dataclasses", "abc", "copy", "importlib")


def location(filename: str, line: int, root: str | None = None) -> str:
    """`exp.py:41`: relative to `root` (default: the working directory), or the bare file name."""
    base = Path(root) if root else Path.cwd()
    try:
        shown = Path(filename).resolve().relative_to(base.resolve()).as_posix()
    except ValueError:
        shown = os.path.basename(filename)
    return f"{shown}:{line}"


def function_location(function: Any, root: str | None = None) -> str:
    """`file:line` of a function, method or property; `` when it has no Python source."""
    found: Any = getattr(function, "fget", function)
    found = inspect.unwrap(getattr(found, "__func__", found))
    code = getattr(found, "__code__", None)
    return location(code.co_filename, code.co_firstlineno, root) if code else ""


def class_root(cls: type) -> str | None:
    """The folder of the file that declares `cls`; None without a file."""
    module = sys.modules.get(cls.__module__)
    path = getattr(module, "__file__", None)
    return os.path.dirname(os.path.abspath(path)) if path else None


def user_frame(start: FrameType | None = None) -> FrameType | None:
    """The innermost frame outside jax, flax, equinox, optax and nitroc; None without one."""
    frame = start or sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and _is_framework(frame):
        frame = frame.f_back
    return frame


def user_location() -> str:
    """`file:line` of the innermost user line; `` when there is none."""
    frame = user_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    return location(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def user_position(root: str | None) -> str:
    """`exp.py:41:5` of the innermost user call, line and column from 1; `` when there is none."""
    frame = user_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return ""
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, _, column, _ = next(positions, (None, None, None, None))
    shown = location(frame.f_code.co_filename, line or frame.f_lineno, root)
    return f"{shown}:{(column or 0) + 1}"


def _is_framework(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _FRAMEWORKS or package in _INTERPRETER
