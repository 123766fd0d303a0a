"""Whether an op has the parts that its class declares."""

from __future__ import annotations

from collections.abc import Iterator

from nitro_dialect.errors import suggestion
from nitro_dialect.op import (
    OPS,
    Op,
    attr,
    entries,
    operand,
    operands,
    region,
    result,
    results,
    symbol,
    variadic,
)


def misfits(op: Op) -> Iterator[str]:
    """What the op's parts lack or have too much, one message each."""
    if OPS.get(op.mnemonic) is not type(op):
        yield f"no op {op.mnemonic}{suggestion(op.mnemonic, OPS)}"
        return
    yield from _operands(op)
    yield from _attributes(op)
    yield from _results(op)
    yield from _presence(op, "a symbol", op.symbol is not None, bool(op.schema(symbol)))
    yield from _presence(op, "a region", op.body is not None, bool(op.schema(region)))
    if op.entries and not op.schema(entries):
        yield f"{op.mnemonic} has no entries, found {', '.join(op.entries)}"


def _presence(op: Op, what: str, found: bool, declared: bool) -> Iterator[str]:
    if found != declared:
        yield f"{op.mnemonic} {'lacks' if declared else 'has no place for'} {what}"


def _operands(op: Op) -> Iterator[str]:
    required = [d.name for d in op.schema(operand)]
    for key in required:
        count = len(op.operands.get(key, []))
        if count != 1:
            yield f"{op.mnemonic} takes one operand {key}, found {count}"
    known = [*required, *(d.name for d in op.schema(variadic, operands))]
    for key in op.operands:
        if key not in known:
            yield f"{op.mnemonic} has no operand {key}{suggestion(key, known)}"


def _attributes(op: Op) -> Iterator[str]:
    declared: dict[str, attr] = {d.name: d for d in op.schema(attr)}
    for key in sorted(declared.keys() | op.attrs.keys()):
        if key not in declared:
            yield f"{op.mnemonic} has no attribute {key}{suggestion(key, declared)}"
        elif key not in op.attrs:
            yield f"{op.mnemonic} lacks attribute {key}"
        elif not _of_kind(op.attrs[key], declared[key].kind):
            kind, value = declared[key].kind.__name__, op.attrs[key]
            yield f"attribute {key} of {op.mnemonic} is a {kind}, found {value!r}"


def _of_kind(value: object, kind: type) -> bool:
    """bool is no int here: `true` and `1` are different texts."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _results(op: Op) -> Iterator[str]:
    count, found = len(op.schema(result)), len(op.results)
    if not op.schema(results) and count != found:
        yield f"{op.mnemonic} has {count} result{'' if count == 1 else 's'}, found {found}"
