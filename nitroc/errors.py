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
declare("BUILD", {})
