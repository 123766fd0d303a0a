"""Check 7: what a manifest refers to is there and fits.

Every finding is in manifest.json, at the JSON path of what refers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from nitro_runtime.checks import CONSTANTS, INIT, expected_constants, expected_weights
from nitro_runtime.dtypes import NUMPY_DTYPES, spell
from nitro_runtime.findings import MANIFEST, Finding
from nitro_runtime.manifest import (
    ArgEntry,
    BufferEntry,
    GroupEntry,
    LeafEntry,
    Manifest,
    ProgramEntry,
    ResultEntry,
    word_of_mark,
)

FOLDERS = {
    "program": "programs/",
    "function": "functions/",
    "ir": "ir/",
    "weights": "weights/",
    "constants": "weights/",
    "host": "host/",
    "golden": "golden/",
    "provenance": "provenance/",
}


def check_references(manifest: Manifest) -> list[Finding]:
    """Every dangling, doubled or misfitting reference of `manifest`."""
    return [
        *_check_files(manifest),
        *_check_functions(manifest),
        *_check_groups(manifest),
        *_check_slots(manifest),
        *_check_tables(manifest),
        *_check_tensor_files(manifest),
        *(
            finding
            for name, program in manifest.programs.items()
            for finding in _check_program(manifest, f'$.programs["{name}"]', program)
        ),
    ]


def _finding(path: str, expected: str, found: str) -> Finding:
    return Finding(MANIFEST, path, expected, found)


def _check_files(manifest: Manifest) -> Iterator[Finding]:
    for name, entry in manifest.files.items():
        if not name.startswith(FOLDERS[entry.kind]):
            path = f'$.files["{name}"].kind'
            yield _finding(path, f"a file under {FOLDERS[entry.kind]}", repr(name))
    users = [program.file for program in manifest.programs.values()]
    for name, entry in manifest.files.items():
        if entry.kind == "program" and users.count(name) != 1:
            yield _finding(f'$.files["{name}"]', "one program", str(users.count(name)))
    host = manifest.experiment.file
    if host is not None:
        yield from _check_file(manifest, "$.experiment.file", host, "host")


def _check_file(manifest: Manifest, path: str, name: str, kind: str) -> Iterator[Finding]:
    entry = manifest.files.get(name)
    if entry is None or entry.kind != kind:
        found = f"{name!r}, a {entry.kind} file" if entry else f"{name!r}, which is not listed"
        yield _finding(path, f"a {kind} file of $.files", found)


def _check_functions(manifest: Manifest) -> Iterator[Finding]:
    stored: set[str] = set()
    for name, function in manifest.functions.items():
        file = f"functions/{function.digest}.shlo"
        stored.add(file)
        yield from _check_file(manifest, f'$.functions["{name}"].digest', file, "function")
    for name, entry in manifest.files.items():
        if entry.kind == "function" and name not in stored:
            yield _finding(f'$.files["{name}"]', "an entry of $.functions", "none")


def _check_groups(manifest: Manifest) -> Iterator[Finding]:
    yield from _unique("$.groups", [group.name for group in manifest.groups])
    for index, group in enumerate(manifest.groups):
        path = f"$.groups[{index}]"
        yield from _unique(f"{path}.leaves", [leaf.path for leaf in group.leaves])
        yield from _unique(f"{path}.buffers", [buffer.name for buffer in group.buffers])
        for buffer in group.buffers:
            yield from _check_buffer(f"{path}.leaves", buffer, group)
        known = {buffer.name for buffer in group.buffers}
        for number, leaf in enumerate(group.leaves):
            if leaf.buffer not in known:
                yield _finding(f"{path}.leaves[{number}].buffer", "a buffer", repr(leaf.buffer))


def _check_buffer(path: str, buffer: BufferEntry, group: GroupEntry) -> Iterator[Finding]:
    """The leaves of a buffer fill it once, end to end, in its dtype."""
    leaves = sorted(
        (leaf for leaf in group.leaves if leaf.buffer == buffer.name), key=lambda leaf: leaf.offset
    )
    at = 0
    for leaf in leaves:
        if leaf.offset != at and prod(leaf.shape):
            yield _finding(
                path, f"{leaf.path!r} at offset {at} of {buffer.name!r}", str(leaf.offset)
            )
        yield from _check_leaf(path, leaf, buffer)
        at = leaf.offset + prod(leaf.shape)
    if at != prod(buffer.shape):
        expected = f"{prod(buffer.shape)} elements in buffer {buffer.name!r}"
        yield _finding(path, expected, str(at))


def _check_leaf(path: str, leaf: LeafEntry, buffer: BufferEntry) -> Iterator[Finding]:
    if leaf.dtype not in NUMPY_DTYPES or any(size < 0 for size in leaf.shape):
        yield _finding(path, "a dtype and shape", f"{leaf.path!r} : {leaf.dtype}{leaf.shape}")
    if leaf.dtype != buffer.dtype:
        yield _finding(path, f"{leaf.path!r} in {buffer.dtype}", leaf.dtype)


def _check_slots(manifest: Manifest) -> Iterator[Finding]:
    yield from _unique("$.slots", [slot.name for slot in manifest.slots])
    groups = {group.name for group in manifest.groups}
    for index, slot in enumerate(manifest.slots):
        if slot.group is not None and slot.group not in groups:
            yield _finding(f"$.slots[{index}].group", "a group", repr(slot.group))


def _check_tables(manifest: Manifest) -> Iterator[Finding]:
    for name in manifest.routing.transfer.keys() - manifest.programs.keys():
        yield _finding("$.routing.transfer", "a program", repr(name))
    yield from _check_marks(manifest)
    words = {
        (word.index, word.name)
        for program in manifest.programs.values()
        if program.role.startswith("train_step")
        for word in program.report
    }
    for index, entry in enumerate(manifest.report):
        if (entry.index, entry.name) not in words:
            found = f"{entry.name!r} at {entry.index}"
            yield _finding(f"$.report[{index}]", "a word of the train program's report", found)


def _check_marks(manifest: Manifest) -> Iterator[Finding]:
    """A mark is placed where the reports have words of it, and nowhere else."""
    placed = manifest.guards.placed
    indices = [entry.index for entry in placed.values()]
    if indices != list(range(len(indices))):
        yield _finding("$.guards.placed", f"the indices 0 to {len(indices) - 1}", str(indices))
    for key, entry in placed.items():
        path = f'$.guards.placed["{key}"].programs'
        for name in entry.programs:
            program = manifest.programs.get(name)
            if program is None:
                yield _finding(path, "a program", repr(name))
            elif key not in _marks_of(program):
                yield _finding(path, f"a program whose report has a word of {key}", repr(name))
    for name, program in manifest.programs.items():
        for key in _marks_of(program):
            if key not in placed or name not in placed[key].programs:
                expected = f"each mark in $.guards.placed with {name} among its programs"
                yield _finding(f'$.programs["{name}"].report', expected, repr(key))


def _marks_of(program: ProgramEntry) -> list[str]:
    """The keys of the marks that the program's report has words of."""
    found = [mark[0] for word in program.report if (mark := word_of_mark(word.name))]
    return list(dict.fromkeys(found))


def _check_mask(manifest: Manifest, path: str, program: ProgramEntry) -> Iterator[Finding]:
    """The selection has one element per diagnostic."""
    marks = manifest.guards.placed.values()
    expected = ("i1", (sum(mark.kind == "diagnostic" for mark in marks),))
    masks = [(arg.dtype, arg.shape) for arg in program.args if arg.role == "mask"]
    if masks != [expected] * (program.role == "train_step_sampled"):
        wanted = spell(*expected) if program.role == "train_step_sampled" else "no mask"
        found = ", ".join(spell(*mask) for mask in masks) or "no mask"
        yield _finding(f"{path}.args", wanted, found)


def _check_tensor_files(manifest: Manifest) -> Iterator[Finding]:
    """Tensors that something needs have a file, or, for weights, a program that makes them."""
    made = any(program.role == "init" for program in manifest.programs.values())
    for name, kind, needed in (
        (INIT, "weights", bool(expected_weights(manifest)) and not made),
        (CONSTANTS, "constants", bool(expected_constants(manifest))),
    ):
        if needed or name in manifest.files:
            yield from _check_file(manifest, "$.files", name, kind)


def _check_program(manifest: Manifest, path: str, program: ProgramEntry) -> Iterator[Finding]:
    yield from _check_file(manifest, f"{path}.file", program.file, "program")
    if program.golden is not None:
        yield from _check_file(manifest, f"{path}.golden", program.golden.file, "golden")
    if program.devices < 1:
        yield _finding(f"{path}.devices", "at least 1", str(program.devices))
    yield from _unique(f"{path}.args", [arg.name for arg in program.args])
    yield from _unique(f"{path}.results", [result.name for result in program.results])
    for index, arg in enumerate(program.args):
        yield from _check_arg(manifest, f"{path}.args[{index}]", arg)
    yield from _check_mask(manifest, path, program)
    yield from _check_donation(path, program)
    yield from _check_scalars(path, program)
    yield from _check_report(path, program)


def _check_arg(manifest: Manifest, path: str, arg: ArgEntry) -> Iterator[Finding]:
    if arg.dtype not in NUMPY_DTYPES or any(size < 0 for size in arg.shape):
        yield _finding(path, "a dtype and shape", f"{arg.dtype}{list(arg.shape)}")
        return
    if arg.role == "batch":
        fields = {name for entry in manifest.batch_schema.values() for name in entry.fields}
        if arg.name.removeprefix("batch.") not in fields:
            yield _finding(path, "batch.<a field of $.batch_schema>", repr(arg.name))
    if arg.role == "slot" and arg.value not in {slot.name for slot in manifest.slots}:
        yield _finding(path, "an entry of $.slots", repr(arg.value))
    if arg.buffer is not None and arg.role in ("param", "slot", "state"):
        found = spell(arg.dtype, arg.shape)
        if found not in (expected := list(_buffer_types(manifest, arg))):
            wanted = " or ".join(sorted(set(expected))) or "a buffer of a group"
            yield _finding(path, f"{arg.buffer!r} : {wanted}", found)


def _buffer_types(manifest: Manifest, arg: ArgEntry) -> Iterator[str]:
    """What the buffer an argument names may be: one group's, in the slot's dtype if it has one."""
    slot = next((slot for slot in manifest.slots if slot.name == arg.value), None)
    for group in manifest.groups:
        if arg.role == "slot" and (slot is None or slot.group != group.name):
            continue
        if arg.role != "slot" and group.role != arg.role:
            continue
        for buffer in group.buffers:
            if buffer.name == arg.buffer:
                yield spell((slot and slot.dtype) or buffer.dtype, buffer.shape)


def _check_donation(path: str, program: ProgramEntry) -> Iterator[Finding]:
    yield from _unique(f"{path}.donate", [str(arg) for arg, _ in program.donate])
    yield from _unique(f"{path}.donate", [str(result) for _, result in program.donate])
    for arg, result in program.donate:
        if not (0 <= arg < len(program.args) and 0 <= result < len(program.results)):
            yield _finding(f"{path}.donate", "an argument and a result", f"[{arg}, {result}]")
            continue
        given, made = program.args[arg], program.results[result]
        if (given.dtype, given.shape) != (made.dtype, made.shape):
            expected = f"{made.name} like {given.name} : {spell(given.dtype, given.shape)}"
            yield _finding(f"{path}.donate", expected, spell(made.dtype, made.shape))


def _check_scalars(path: str, program: ProgramEntry) -> Iterator[Finding]:
    yield from _unique(f"{path}.scalars", [scalar.name for scalar in program.scalars])
    indices = [scalar.index for scalar in program.scalars]
    if sorted(indices) != list(range(len(indices))):
        yield _finding(f"{path}.scalars", f"the indices 0 to {len(indices) - 1}", str(indices))
    width = _last_dim(arg for arg in program.args if arg.role == "scalars")
    if width != len(indices):
        yield _finding(f"{path}.scalars", f"{width} words, as the argument has", str(len(indices)))


def _check_report(path: str, program: ProgramEntry) -> Iterator[Finding]:
    yield from _unique(f"{path}.report", [word.name for word in program.report])
    at = 0
    for word in sorted(program.report, key=lambda word: word.index):
        if word.index != at or word.words < 1:
            yield _finding(f"{path}.report", f"{word.name!r} at word {at}", str(word.index))
        at = word.index + word.words
    width = _last_dim(result for result in program.results if result.role == "report")
    if width != at:
        yield _finding(f"{path}.report", f"{width} words, as the result has", str(at))


def _last_dim(tensors: Iterator[ArgEntry] | Iterator[ResultEntry]) -> int:
    """The last dimension of the one tensor there is; 0 without one."""
    tensor = next(tensors, None)
    return tensor.shape[-1] if tensor is not None and tensor.shape else 0


def _unique(path: str, names: Iterable[str]) -> Iterator[Finding]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield _finding(path, "each once", f"{name!r} twice")
        seen.add(name)
