"""The manifest: the one entry point of a bundle, which explains every file, argument and word.

Format versions, newest first:

    1.1  2026-11-29  Marks: `guards.placed` says what each is; the words of reports that they make.
    1.0  2026-11-29  The first: train, forward, reduce and init programs on one device.

A reader refuses another major number and a newer minor one. Within a major number a minor one only
adds keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from nitro_runtime.canonical import Json
from nitro_runtime.records import OneOf, Record

MAJOR, MINOR = 1, 1

FILE_KINDS = (
    "program",
    "function",
    "ir",
    "weights",
    "constants",
    "host",
    "golden",
    "provenance",
)
ARG_ROLES = (
    "param",
    "slot",
    "state",
    "anchor",
    "const",
    "device",
    "scalars",
    "seed",
    "batch",
    "steps",
    "mask",
    "split",
    "index",
    "outputs",
)
RESULT_ROLES = ("param", "slot", "state", "outputs", "report")
PROGRAM_ROLES = ("train_step", "train_step_sampled", "forward", "reduce", "init", "predict")


@dataclass(frozen=True)
class FormatEntry(Record):
    """Version of the format: `major` breaks readers, `minor` adds keys."""

    major: int
    minor: int


@dataclass(frozen=True)
class FileEntry(Record):
    """A file of the bundle, by its relative name.

    size: bytes. sha256: 64 lower-case hex digits of the content. kind: one of `FILE_KINDS`.
    """

    size: int
    sha256: str
    kind: Annotated[str, OneOf(FILE_KINDS)]


@dataclass(frozen=True)
class ExperimentEntry(Record):
    """The experiment's class. file: where it is under `host/`; null when there is no source."""

    name: str
    file: str | None


@dataclass(frozen=True)
class FieldEntry(Record):
    """A field of the experiment.

    type: the annotation as written. value: JSON; an array is `{"dtype", "shape", "sha256"}`, what
    JSON can't hold `{"repr": ...}`. source: where the value came from (`default`, `preset x`,
    `--set`, `derive`).
    """

    kind: Annotated[str, OneOf(("Device", "GraphConst", "Host"))]
    type: str
    value: Json
    doc: str
    source: str


@dataclass(frozen=True)
class OptionEntry(Record):
    """An option. source: where its value came from. baked: no run can change it any more."""

    value: Json
    source: str
    baked: bool


@dataclass(frozen=True)
class LeafEntry(Record):
    """A leaf of a group: `offset` is in elements from the start of `buffer`.

    path: encoded key path. flags: sorted words, `decay`, `frozen`, `key:<impl>`. master: whether
    the leaf trains through an f32 copy.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    flags: tuple[str, ...]
    buffer: str
    offset: int
    master: bool = False


@dataclass(frozen=True)
class BufferEntry(Record):
    """What one argument of a tree input holds: one leaf, or several packed end to end (1-D)."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class GroupEntry(Record):
    """A group of leaves in table order and the buffers they are packed into.

    role: `param`, `state` or `outputs` (`outputs.bW` is forward's at width W, never packed).
    """

    name: str
    role: Annotated[str, OneOf(("param", "state", "outputs"))]
    leaves: tuple[LeafEntry, ...]
    buffers: tuple[BufferEntry, ...]


@dataclass(frozen=True)
class SlotEntry(Record):
    """A slot of the train program: a tree over `group` (null for a tensor) in `dtype`.

    dtype: null when it is the leaves' own. initial: `zeros`, `param` (a copy of the parameters) or
    a number as text (`0`, `false`).
    """

    name: str
    group: str | None
    dtype: str | None
    initial: str


@dataclass(frozen=True)
class StateEntry(Record):
    """A buffer that lives from step to step, as every program that takes it sees it."""

    name: str
    role: Annotated[str, OneOf(("param", "slot", "state"))]
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ArgEntry(Record):
    """An argument of `main`, in order.

    name: unique in the program: `param.p:<buffer>`, `slot.mu:<buffer>`, `slot.t`,
    `state.s:<buffer>`, `device.<leaf>`, `const.<name>`, `scalars`, `seed`, `steps`, `split`,
    `index`, `batch.<field>`, `outputs.<path>`. value: the IR input it belongs to. buffer: which
    buffer of a tree, else null. dtype: as the IR spells it.
    """

    name: str
    role: Annotated[str, OneOf(ARG_ROLES)]
    value: str
    buffer: str | None
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ResultEntry(Record):
    """A result of `main`, in order; the fields are those of `ArgEntry`."""

    name: str
    role: Annotated[str, OneOf(RESULT_ROLES)]
    value: str
    buffer: str | None
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ScalarEntry(Record):
    """A word of the packed `scalars` argument; i32 and i1 values are bit-cast into it."""

    name: str
    dtype: str
    kind: Annotated[str, OneOf(("device", "optimizer"))]
    index: int


@dataclass(frozen=True)
class ReportWord(Record):
    """A value of the report: `words` ui32 from `index` on; f32 bit-cast, i64 high word first."""

    name: str
    dtype: str
    index: int
    words: int


@dataclass(frozen=True)
class GoldenEntry(Record):
    """Recorded inputs and outputs; outputs agree to `rtol`, on the recording platform bitwise."""

    file: str
    rtol: float


@dataclass(frozen=True)
class ProgramEntry(Record):
    """A program: one StableHLO portable artifact with one public `main`.

    dims: those that apply of `width`, `rows`, `accum`, `capacity`. devices: the count it is
    compiled for. donate: pairs (argument index, result index) that share memory. memory: bytes by
    purpose, when known. flops: of one step or batch, when known.
    """

    file: str
    role: Annotated[str, OneOf(PROGRAM_ROLES)]
    dims: dict[str, int]
    devices: int
    args: tuple[ArgEntry, ...]
    results: tuple[ResultEntry, ...]
    scalars: tuple[ScalarEntry, ...]
    report: tuple[ReportWord, ...]
    donate: tuple[tuple[int, int], ...]
    golden: GoldenEntry | None = None
    memory: dict[str, int] = field(default_factory=dict[str, int])
    flops: int | None = None


@dataclass(frozen=True)
class FuseEntry(Record):
    """capacity: K_max, the steps one dispatch of the train program can run. reason: why so many."""

    capacity: int
    reason: str


@dataclass(frozen=True)
class FunctionEntry(Record):
    """An imported function, stored in `functions/<digest>.shlo`.

    hook: the hook it was traced from. digest: sha256 of its text without locations. source:
    `file:line` of the hook, relative to the project root.
    """

    hook: str
    digest: str
    source: str


@dataclass(frozen=True)
class ReportEntry(Record):
    """What a value of the train program's report means; `index` is its first word.

    kind: `step` (of the step itself), `metric` (of a hook), or that of the mark it belongs to,
    whose metadata and source these are.
    """

    index: int
    name: str
    kind: str
    metadata: Json
    source: str


@dataclass(frozen=True)
class GuardEntry(Record):
    """A mark: one call of `guard`, `assert_finite` (kind `finite`), `metric` or `diagnostic`.

    index: its place among the marks, in the order of the source; a selection mask has the
    diagnostics in this order. programs: those it runs in; none for a diagnostic in a hook that
    never trains. source: `file:line:column` of the call. below, above: strict bounds; there and in
    metadata, what is no JSON number is given by its name: `inf`.
    """

    kind: Annotated[str, OneOf(("guard", "finite", "metric", "diagnostic"))]
    name: str
    programs: tuple[str, ...]
    source: str
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    reduce: Annotated[str, OneOf(("mean", "max", "min", "sum"))] = "mean"
    below: Json = None
    above: Json = None
    index: int = 0


@dataclass(frozen=True)
class GuardsEntry(Record):
    """placed: the marks by key, in the order of their index. dropped: those a served program lost.

    The words of a report are `guard/<key>` (i64, violations), `guard/<key>:odd`, and
    `mark/<key>:<sum|n|max|min>`; an optimizer's guard also has `guard/<key>:first` (the index of
    the first parameter that counted, -1 for none) and `guard/<key>:first_count`.
    """

    placed: dict[str, GuardEntry] = field(default_factory=dict[str, GuardEntry])
    dropped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # JSON text has its keys sorted: the order is that of the entries, however they were read.
        ordered = dict(sorted(self.placed.items(), key=lambda pair: pair[1].index))
        object.__setattr__(self, "placed", ordered)


_OF_MARKS = ("odd", "first", "first_count", "sum", "n", "max", "min")


def word_of_mark(name: str) -> tuple[str, str] | None:
    """Key and channel of a report word that a mark makes; None for any other word.

    `guard/<key>` alone is the channel `count`.
    """
    folder, _, rest = name.partition("/")
    if folder not in ("guard", "mark"):
        return None
    key, colon, channel = rest.rpartition(":")
    return (key, channel) if colon and channel in _OF_MARKS else (rest, "count")


@dataclass(frozen=True)
class TensorEntry(Record):
    """dtype as the IR spells it; shape with rows first where there is a batch."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class BatchEntry(Record):
    """A split's batches: `fields` at full `width`; last: rows of a short last batch, else null."""

    fields: dict[str, TensorEntry]
    width: int
    last: int | None


@dataclass(frozen=True)
class RouteEntry(Record):
    """The batch fields a hook takes, those it accepts that no split has, and where it is."""

    fields: tuple[str, ...]
    absent: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class RoutingEntry(Record):
    """hooks: by name. transfer: the batch fields each program takes (by program name)."""

    hooks: dict[str, RouteEntry] = field(default_factory=dict[str, RouteEntry])
    transfer: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class ScheduleEntry(Record):
    """A schedule of a scalar; table: its values for `horizon` steps, when recorded."""

    source: str
    horizon: int | None
    table: tuple[float, ...] | None


@dataclass(frozen=True)
class NumericsEntry(Record):
    """What decides bits besides the text: default matmul precision and the random generator."""

    matmul_precision: str
    rng: str


@dataclass(frozen=True)
class InterfaceEntry(Record):
    """inputs: fields a prediction needs. outputs: the tree spec of forward's outputs."""

    inputs: dict[str, TensorEntry] = field(default_factory=dict[str, TensorEntry])
    outputs: Json = None


@dataclass(frozen=True)
class BatchingEntry(Record):
    """sizes: compiled row counts of forward. row_independent: null when it was not tested."""

    sizes: tuple[int, ...] = ()
    row_independent: bool | None = None


@dataclass(frozen=True)
class RequiresEntry(Record):
    """What running needs.

    stablehlo: the artifacts' version. platforms: those the programs were traced for. custom_calls:
    every target called. python: versions of the distributions `host/` imports.
    """

    stablehlo: str = ""
    platforms: tuple[str, ...] = ()
    custom_calls: tuple[str, ...] = ()
    python: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Manifest(Record):
    """Everything a reader knows of a bundle; `digest` is its identity.

    groups, slots: in program order. state: every buffer that lives from step to step. pipeline: the
    pass string. portable: whether another release may compile the programs (no custom calls without
    a stability promise). producer: versions of what wrote it. provenance: where the source was.
    """

    name: str
    experiment: ExperimentEntry
    numerics: NumericsEntry
    pipeline: str
    digest: str = ""
    format: FormatEntry = FormatEntry(MAJOR, MINOR)
    files: dict[str, FileEntry] = field(default_factory=dict[str, FileEntry])
    fields: dict[str, FieldEntry] = field(default_factory=dict[str, FieldEntry])
    options: dict[str, OptionEntry] = field(default_factory=dict[str, OptionEntry])
    groups: tuple[GroupEntry, ...] = ()
    slots: tuple[SlotEntry, ...] = ()
    state: tuple[StateEntry, ...] = ()
    programs: dict[str, ProgramEntry] = field(default_factory=dict[str, ProgramEntry])
    fuse: FuseEntry = FuseEntry(1, "one step per dispatch")
    functions: dict[str, FunctionEntry] = field(default_factory=dict[str, FunctionEntry])
    report: tuple[ReportEntry, ...] = ()
    guards: GuardsEntry = GuardsEntry()
    batch_schema: dict[str, BatchEntry] = field(default_factory=dict[str, BatchEntry])
    routing: RoutingEntry = RoutingEntry()
    schedules: dict[str, ScheduleEntry] = field(default_factory=dict[str, ScheduleEntry])
    interface: InterfaceEntry = InterfaceEntry()
    batching: BatchingEntry = BatchingEntry()
    requires: RequiresEntry = RequiresEntry()
    portable: bool = True
    producer: dict[str, str] = field(default_factory=dict[str, str])
    provenance: dict[str, Json] = field(default_factory=dict[str, Json])

    def group(self, name: str) -> GroupEntry:
        """The group called `name`; KeyError otherwise."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)
