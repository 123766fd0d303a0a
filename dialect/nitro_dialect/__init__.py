"""The language of training programs: nitro ops, their text form, their rules.

    module = parse(text)          text -> Module
    verify(module)                DialectError with everything that is wrong
    print_module(module)          Module -> canonical text; parse(print_module(m)) == m

`ir` holds the data structure, `ops` the operations, `builder` builds, `rewrite` changes, `compare`
compares. Imports the standard library, and lark at the first parse.
"""

from nitro_dialect.compare import difference
from nitro_dialect.errors import CODES, Diagnostic, DialectError
from nitro_dialect.ir import Module, Program, Region, Rule, Value
from nitro_dialect.parser import parse
from nitro_dialect.printer import print_module, print_program
from nitro_dialect.rewrite import clone, drop_dead, replace_uses, users, walk
from nitro_dialect.verifier import verify, verify_core

__all__ = [
    "CODES",
    "Diagnostic",
    "DialectError",
    "Module",
    "Program",
    "Region",
    "Rule",
    "Value",
    "clone",
    "difference",
    "drop_dead",
    "parse",
    "print_module",
    "print_program",
    "replace_uses",
    "users",
    "verify",
    "verify_core",
    "walk",
]
