"""What ends a region or a program."""

from __future__ import annotations

from nitro_dialect.ir import Value
from nitro_dialect.op import Context, Op, entries, operands, variadic
from nitro_dialect.ops.common import fits, type_of
from nitro_dialect.types import is_scalar


class Yield(Op):
    """Ends a region with its values."""

    mnemonic = "yield"
    terminator = True
    values = variadic()


class Assign(Op):
    """What each stateful input holds after the step.

    (C1) Targets are distinct inputs of role param, slot or state.
    (C2) Every target has one value of its type.
    """

    mnemonic = "assign"
    targets = variadic()
    from_ = operands()

    def check(self, context: Context) -> None:
        inputs = {
            i.value for p in context.module.programs.values() for i in p.inputs
            if i.role in ("param", "slot", "state")
        }  # fmt: skip
        ok = len(set(map(id, self.targets))) == len(self.targets)
        ok = ok and all(isinstance(t, Value) and t in inputs for t in self.targets)
        context.require(self, ok, "C1", "targets must be distinct param, slot or state inputs")
        ok = len(self.targets) == len(self.from_) and all(
            isinstance(t, Value) and fits(v, t.type)
            for t, v in zip(self.targets, self.from_, strict=False)
        )
        context.require(self, ok, "C2", "every target takes one value of its type")


class Report(Op):
    """The step's report, word by word: f32 bit-cast, i64 in two words (high first), i1 as 0 or 1.

    (C1) Words are f32, i64, i32 or i1 scalars.
    """

    mnemonic = "report"
    terminator = True
    words = entries()

    def check(self, context: Context) -> None:
        wrong = [
            f"{key} = {type_of(word) or 'a literal'}"
            for key, word in self.words.items()
            if not (isinstance(word, Value) and is_scalar(word.type, "f32", "i64", "i32", "i1"))
        ]
        found = ", ".join(wrong)
        context.require(self, not wrong, "C1", f"words must be f32, i64, i32 or i1, found {found}")


class Output(Op):
    """Results of an evaluation program by name; a tree's leaves become `name/path`."""

    mnemonic = "output"
    terminator = True
    values = entries()
