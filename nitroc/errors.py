"""Errors of the compiler, under the runtime's base so that one handler prints them all.

NitroError
 +- FieldError     E-FIELD    exit 3   a field of the experiment
 +- HookError      E-HOOK     exit 3   a hook's signature, routing or result
 +- ContractError  E-CONTRACT exit 3   what a traced hook may not do
 +- OptError       E-OPT      exit 3   groups, rules, decay, clip, accumulation
 +- BuildError     E-BUILD    exit 3   tracing, importing, emitting, writing
"""

from __future__ import annotations

from nitro_runtime.errors import CODES, NitroError, declare

__all__ = ["CODES", "BuildError", "ContractError", "FieldError", "HookError", "OptError"]


class FieldError(NitroError):
    area = "FIELD"
    exit_code = 3


class HookError(NitroError):
    area = "HOOK"
    exit_code = 3


class ContractError(NitroError):
    area = "CONTRACT"
    exit_code = 3


class OptError(NitroError):
    area = "OPT"
    exit_code = 3


class BuildError(NitroError):
    area = "BUILD"
    exit_code = 3


declare("FIELD", {})
declare("HOOK", {})
declare("CONTRACT", {})
declare("OPT", {})
declare(
    "BUILD",
    {
        70: (
            "the output exists",
            "A bundle is never written over an existing name unless asked to.",
            "Choose a new name, or pass `--force` to replace the bundle there.",
        ),
        71: (
            "no permission to write",
            "The directory the bundle is written into does not allow it.",
            "Write to a directory of yours, or change its permissions.",
        ),
        72: (
            "the bundle could not be written",
            "The file system refused: no space, no such device, a name too long.",
            "Free space or write elsewhere; nothing was left behind.",
        ),
        73: (
            "the output is not a bundle",
            "`--force` replaces a bundle only: what is there is something else, or holds files "
            "no bundle holds.",
            "Choose a new name, or move those files away.",
        ),
        74: (
            "a program that no loader would accept",
            "An emitted program breaks the format's rules.",
            "This is a defect of the compiler: please report it with the message.",
        ),
        75: (
            "a value that is not reproducible",
            "The bundle would hold something that differs between equal builds, such as an "
            "absolute path.",
            "Use a path relative to the project, or a Host field that is not recorded.",
        ),
    },
)
