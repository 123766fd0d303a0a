"""Exceptions that carry no code, as errors that do: the user's own, wrong flags, and defects."""

from __future__ import annotations

import re
import traceback

import click

from nitro_runtime.errors import NitroError, RunError, UsageError
from nitroc.errors import HookError
from nitroc.frontend.fulltext import first_line, write_traceback
from nitroc.frontend.locations import is_user_file, relative_path
from nitroc.frontend.options import OPTIONS

USES_A_BUNDLE = ("nitroc run", "nitroc evaluate", "nitroc predict")
_BUILT_IN = ("preset", "platform", "compat", "strip_locs")
_NOTE = re.compile(r"in hook (\w+), ")


def explained(error: Exception, command: str) -> NitroError:
    """E-RUN-004 or E-HOOK-010 (nothing is trained yet) at the user's line; without one E-RUN-006
    where the system refused, else E-RUN-005.

    The traceback goes to a file that is named. It starts where the command does, so that a frame
    of the user's is one that nitroc called.
    """
    stem = command.replace(" ", "-").removeprefix("nitroc-")
    what = f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")
    also = [f"full text: {write_traceback(error, stem)}"]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if is_user_file(frame.filename, None)
    ]
    if not frames and isinstance(error, OSError):
        return RunError(6, what, where=command, also=also)
    if not frames:
        return RunError(
            5, what, where=command, also=also, help="please report it with the file that is named"
        )
    where = f"{relative_path(frames[-1].filename, None)}:{frames[-1].lineno}"
    kind, number = (RunError, 4) if command in USES_A_BUNDLE else (HookError, 10)
    return kind(
        number,
        what,
        where=f"{where}, in {_hook(error) or frames[0].name}",
        also=also,
        help="fix the line that is named; the full text is in the file",
    )


def _hook(error: Exception) -> str | None:
    notes = [_NOTE.match(note) for note in getattr(error, "__notes__", ())]
    return next((f"hook {found[1]}" for found in notes if found), None)


def baked_flag(error: click.UsageError) -> UsageError | None:
    """E-USAGE-005 for a flag of `build` that is given to `run`; None for any other mistake."""
    if not isinstance(error, click.NoSuchOption):
        return None
    flag = error.option_name
    name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    if name not in _BUILT_IN and not (name in OPTIONS and OPTIONS[name].baked):
        return None
    return UsageError(
        5,
        f"{flag} is part of the compiled programs and can't change when the bundle runs",
        where=flag,
        help=f"build again: nitroc build exp.py -o bundle/ {flag} ...",
    )
