"""Errors of the runtime: one tree, one code each, explained by `nitroc explain CODE`.

    NitroError
     +- UsageError     E-USAGE    exit 2   flags and options
     +- BundleError    E-BUNDLE   exit 3   a bundle is refused
     +- CheckpointError E-CKPT    exit 3   a checkpoint is refused
     +- DeviceError    E-DEVICE   exit 4   this machine can't run it
     +- DataError      E-DATA     exit 3   a batch or a source is wrong (exit 1 when a step finds it)
     +- ScheduleError  E-SCHED    exit 3   a schedule is wrong (exit 1 when a step finds it)
     +- GuardError     E-GUARD    exit 1   a guard or the finite guard stopped the run
     +- RunError       E-RUN      exit 1   the run failed otherwise

The compiler's own areas are in `nitroc.errors`, under the same base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class CodeInfo:
    """What `nitroc explain CODE` prints."""

    title: str
    cause: str
    fix: str


CODES: dict[str, CodeInfo] = {}
"""Every code of this package; a number is given once and never reused."""


def declare(area: str, rows: dict[int, tuple[str, str, str]]) -> None:
    """Adds `area`'s codes; a number given twice is an assertion."""
    for number, (title, cause, fix) in rows.items():
        code = f"E-{area}-{number:03d}"
        assert code not in CODES, code
        CODES[code] = CodeInfo(title, cause, fix)


class NitroError(Exception):
    """What happened, where, and the fix, under a stable code.

    `where` is `file:line` or the name of a field, hook or file; `also` are further findings, one
    line each; `step_found` marks data and schedule errors that a running step met (exit 1).
    """

    area: ClassVar[str] = "RUN"
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        number: int,
        what: str,
        *,
        where: str | None = None,
        help: str | None = None,
        also: Sequence[str] = (),
        step_found: bool = False,
    ) -> None:
        self.code = f"E-{self.area}-{number:03d}"
        assert self.code in CODES, f"{self.code} is not in the table"
        self.what = what
        self.where = where
        self.help = help
        self.also = tuple(also)
        self.step_found = step_found
        super().__init__(self.text())

    @property
    def exit(self) -> int:
        """The exit status a command ends with."""
        return 1 if self.step_found else self.exit_code

    def text(self) -> str:
        """`E-AREA-NNN: what; where`, then `also:` lines and `help:`."""
        lines = [f"{self.code}: {self.what}" + (f"; {self.where}" if self.where else "")]
        lines += [f"also: {line}" for line in self.also]
        if self.help:
            lines.append(f"help: {self.help}")
        return "\n".join(lines)


class UsageError(NitroError):
    area = "USAGE"
    exit_code = 2


class BundleError(NitroError):
    area = "BUNDLE"
    exit_code = 3


class CheckpointError(NitroError):
    area = "CKPT"
    exit_code = 3


class DeviceError(NitroError):
    area = "DEVICE"
    exit_code = 4


class DataError(NitroError):
    area = "DATA"
    exit_code = 3


class ScheduleError(NitroError):
    area = "SCHED"
    exit_code = 3


class GuardError(NitroError):
    area = "GUARD"


class RunError(NitroError):
    area = "RUN"


declare(
    "USAGE",
    {
        60: (
            "an option is out of range",
            "A run option has a value outside its range.",
            "Give a value in the range that the message states.",
        ),
        61: (
            "a duration can't be read",
            "`max_time` is neither seconds above 0 nor a text like `2h30m`.",
            "Give seconds, or hours, minutes and seconds: 90, 45s, 10m, 2h30m.",
        ),
        62: (
            "two sources for the parameters",
            "`resume` and `checkpoint` are both given.",
            "Resume continues a run; `checkpoint` starts a fresh one from its weights: keep one.",
        ),
    },
)
