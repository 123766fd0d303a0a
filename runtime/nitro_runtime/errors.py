"""Errors of the runtime: one tree, one code each, explained by `nitroc explain CODE`.

    NitroError
     +- UsageError     E-USAGE    exit 2   flags and options
     +- BundleError    E-BUNDLE   exit 3   a bundle is refused
     +- CheckpointError E-CKPT    exit 3   a checkpoint is refused
     +- DeviceError    E-DEVICE   exit 4   this machine can't run it
     +- DataError      E-DATA     exit 3   a batch or source is wrong (exit 1 when a step finds it)
     +- ScheduleError  E-SCHED    exit 3   a schedule is wrong (exit 1 when a step finds it)
     +- GuardError     E-GUARD    exit 1   a guard or the finite guard stopped the run
     +- RunError       E-RUN      exit 1   the run failed otherwise

The compiler's own areas are in `nitroc.errors`, under the same base.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
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


def near(name: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the nearest of `known`, or nothing."""
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


class NitroError(Exception):
    """What happened, where, and the fix, under a stable code.

    `where` is `file:line` or the name of a field, hook or file; `help`, when none is given, is the
    code's own; `also` are further findings, one line each; `step_found` marks errors of
    data, schedules and checkpoints that a running step met (exit 1).
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
        self.help = help or CODES[self.code].fix
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
        return "\n".join([*lines, f"help: {self.help}"])


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


@dataclass(frozen=True)
class GuardFinding:
    """A guard that counted: what its call was given, how much it counted, and where it is written.

    `meta` of an optimizer's has `group` and `param`; the finite guard is called `finite`.
    """

    name: str
    meta: Mapping[str, object]
    count: int
    source: str | None


class GuardError(NitroError):
    """A guard, or the finite guard (`name` is then the loss or the parameter), stopped the run.

    `step` is the one that was tried; `split` and `metrics` are those of a pass; `others` are the
    further guards that counted, in the order of the message.
    """

    area = "GUARD"
    name: str = ""
    meta: Mapping[str, object] = {}
    count: int | None = None
    step: int | None = None
    epoch: int | None = None
    stage: str = "train"
    split: str | None = None
    source: str | None = None
    others: Sequence[GuardFinding] = ()
    metrics: Mapping[str, object] | None = None


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
        63: (
            "a name that is not there",
            "A scalar, Device field, split or metric was named that the bundle or the run lacks.",
            "Use one of the names listed.",
        ),
        64: (
            "a scheduled value set by hand",
            "A schedule gives this value at every step; one set by hand would be lost.",
            "Take the name out of `schedules`, then set it.",
        ),
        65: (
            "a value of another shape or dtype",
            "A Device field keeps the shape and dtype that the programs were compiled for.",
            "Give a value of the shape and dtype that the message states.",
        ),
        66: (
            "this run can't do that",
            "The experiment or bundle lacks what the call needs: a train split, a program, data.",
            "Do what the message says.",
        ),
        67: (
            "a stopping or ranking rule that can't work",
            "A patience, mode, metric or count of a rule is impossible in this run.",
            "Correct the value that the message names.",
        ),
        68: (
            "a pattern that selects no diagnostic",
            "`diagnostics` holds patterns over names; one of them fits no diagnostic of the train "
            "program.",
            "Use names or patterns of the diagnostics listed, or leave the option out.",
        ),
        69: (
            "a metric with a name that is taken",
            "`nt.metric` and `nt.diagnostic` share the log's lines with the loss, the optimizer's "
            "values and the metrics that hooks return.",
            "Give the mark another name, or metadata.",
        ),
    },
)


declare(
    "DEVICE",
    {
        20: (
            "unknown backend",
            "The platform asked for is not among those this machine's jaxlib offers.",
            "Ask for one of those listed, or install the jaxlib plugin of the platform.",
        ),
        21: (
            "no backend starts",
            "jaxlib could not start a client, usually because JAX_PLATFORMS names a platform "
            "this machine lacks.",
            "Unset JAX_PLATFORMS, or set it to a platform of this machine.",
        ),
        22: (
            "wrong number of arguments",
            "A program was called with more or fewer buffers than its manifest lists.",
            "Pass exactly the arguments listed, in the order of the manifest.",
        ),
        23: (
            "an argument of another type",
            "A buffer's dtype or shape differs from the program's. Backends check only the size "
            "in bytes, and would compute wrong numbers.",
            "Pass a buffer of the expected dtype and shape.",
        ),
        24: (
            "an argument on another device",
            "A buffer lies on a device the program was not compiled for.",
            "Place the buffer on the program's device.",
        ),
        25: (
            "an argument that is gone",
            "A buffer was deleted or donated to an earlier call.",
            "Use the result that took its place.",
        ),
        26: (
            "one buffer for a donated argument and another",
            "A donated buffer is overwritten: it can be passed once only.",
            "Copy the buffer for one of the two arguments.",
        ),
        27: (
            "the backend refuses a program",
            "The backend's compiler raised. The bundle may need a newer jaxlib.",
            "Read the backend's message; build the bundle for this platform and jaxlib.",
        ),
        28: (
            "a stored executable does not load",
            "The bytes are of another jaxlib, platform or CPU, or damaged.",
            "Compile the program again.",
        ),
        29: (
            "a program failed on the device",
            "The backend raised while the program ran.",
            "Read the backend's message.",
        ),
        30: (
            "out of device memory",
            "The device has no room for a buffer or for a program's temporaries.",
            "Use a smaller batch, more accumulation, or a larger device.",
        ),
        31: (
            "not a device array",
            "A program was given something else than an array on a device.",
            "Place the array on the device first.",
        ),
        32: (
            "a value can't be placed in this dtype",
            "Converting the array would lose its kind, as from float to integer.",
            "Convert it yourself, stating the rounding.",
        ),
    },
)

declare(
    "DATA",
    {
        2: (
            "a field has a reserved name",
            "train, key and self are handed to hooks by the framework.",
            "Rename the field.",
        ),
        3: (
            "a traced hook asks for a field that is not numeric",
            "Text and objects stay on the host; programs take numbers.",
            "Encode the field as numbers, or read it in a host hook.",
        ),
        4: (
            "a value does not fit its narrowed type",
            "f64 becomes f32 and i64 becomes i32 only when every value fits.",
            "Cast the field in the source, to a type that holds its values.",
        ),
        5: (
            "a batch differs from the first one",
            "Programs are compiled for one set of names, dtypes and shapes per split.",
            "Make every batch of the split alike; only the last may have fewer rows.",
        ),
        6: (
            "the fields of a batch have different numbers of rows",
            "Axis 0 of every routed field is the batch.",
            "Put the batch axis first in every field.",
        ),
        7: (
            "a field has no batch axis",
            "Axis 0 of every routed field is the batch.",
            "Give it one value per row, or make it a Device field.",
        ),
        30: (
            "a dtype no program holds",
            "The array holds text, objects, dates or another dtype outside the dialect.",
            "Convert it to a number dtype, or keep the field on the host.",
        ),
        31: (
            "unknown dtype name",
            "The spelling is not a dtype of the dialect.",
            "Use one of the spellings listed.",
        ),
        32: (
            "a one-shot source",
            "A generator or another iterator is empty after one epoch.",
            "Return an object whose __iter__ starts afresh, or a list of batches.",
        ),
        33: (
            "not a data source",
            "The object has neither iteration nor begin_epoch and batch_at.",
            "Return a list of batches, nt.data.arrays(...), or a source of your own.",
        ),
        34: (
            "a source without len",
            "Schedules, progress and resuming need the number of batches.",
            "Define __len__: the number of batches of one epoch.",
        ),
        35: (
            "a split without batches",
            "The source is empty, or has fewer rows than one batch and drops the rest.",
            "Leave the split out, or give it data.",
        ),
        36: (
            "a batch that is not a dict",
            "A batch maps field names to arrays.",
            "Yield a dict from field name to array.",
        ),
        37: (
            "a batch that is None",
            "A worker returned None, as when a function forgets its return.",
            "Return every batch of the epoch once.",
        ),
        38: (
            "no batch axis",
            "No field of the batch is an array or a list with one entry per row.",
            "Make the batch the first axis of each array.",
        ),
        39: (
            "a batch of zero rows",
            "The first axis of the batch's arrays is empty.",
            "Leave empty batches out.",
        ),
        40: (
            "another number of batches than len",
            "An epoch delivers each batch once; the source ended early or went on.",
            "Make __len__ the number of batches that iterating gives.",
        ),
        41: (
            "fields of unequal length",
            "The columns of nt.data.arrays differ in their number of rows.",
            "Give each field one entry per row.",
        ),
        42: (
            "a field without rows",
            "nt.data.arrays got no field with rows, or a single value for one.",
            "Pass arrays whose first axis is the row.",
        ),
        43: (
            "batch size below 1",
            "nt.data.arrays needs a whole number of rows per batch.",
            "Give a batch size of at least 1.",
        ),
        44: (
            "Prefetch option below 1",
            "Nothing can be read ahead with no worker or no room.",
            "Give at least 1, or use NoPrefetch(source).",
        ),
        45: (
            "batch_at and iteration differ",
            "Index access and iteration give different batches, often because batch_at takes its "
            "index for a row's.",
            "Return the i-th batch of the plan.",
        ),
    },
)

# A number of BUNDLE is the number of the loader's check that failed.
declare(
    "BUNDLE",
    {
        1: (
            "not a bundle's directory",
            "The path is no readable directory, or it holds a link, a special file, an oversized "
            "file, or a name that leads out of it.",
            "Give the directory `nitroc build -o` or `nitroc export -o` wrote, copied whole.",
        ),
        2: (
            "the manifest can't be read",
            "There is no manifest.json, or it is not UTF-8 JSON of bounded depth.",
            "Give a bundle's directory; copy or build a damaged one again.",
        ),
        3: (
            "another format version",
            "The bundle was written in a format this runtime does not know.",
            "Install a nitroc that reads this format, or build the bundle again.",
        ),
        4: (
            "the manifest is damaged",
            "A key or a type is wrong, the text is not canonical, or the digest does not match. "
            "A manifest is never edited by hand.",
            "Copy or build the bundle again.",
        ),
        5: (
            "files missing or added",
            "The directory does not hold exactly the files its manifest lists.",
            "Copy the bundle again; keep runs and notes outside of it.",
        ),
        6: (
            "a file is damaged",
            "A file's size or sha256 differs from the manifest's.",
            "Copy or build the bundle again.",
        ),
        7: (
            "the manifest contradicts itself",
            "A file, buffer, group, scalar or report word that the manifest refers to is not there "
            "or does not fit.",
            "Build the bundle again; tell its producer if it persists.",
        ),
        8: (
            "a program this runtime can't read",
            "The file is no StableHLO portable artifact, or was written for a newer or much older "
            "StableHLO.",
            "Build with `--compat` and a version this runtime has, or update jaxlib here.",
        ),
        9: (
            "a program that may not run",
            "The program is not one static `main` of known operations: it calls the host, an "
            "unlisted custom call, itself, or leaves a shape open.",
            "Build the bundle again from an experiment without callbacks.",
        ),
        10: (
            "a program differs from the manifest",
            "An argument's or result's type, or what is donated, is not what the manifest says.",
            "Build the bundle again; tell its producer if it persists.",
        ),
        11: (
            "programs disagree about the state",
            "A parameter, slot or state buffer has another dtype or shape in another program.",
            "Build the bundle again; tell its producer if it persists.",
        ),
        12: (
            "the weights do not fit",
            "A weights file is malformed, or its names, dtypes or shapes are not the groups'.",
            "Build the bundle again; tell its producer if it persists.",
        ),
        14: (
            "a program does not compile",
            "The backend refused a program of the bundle.",
            "Read the backend's message; build the bundle for this platform and jaxlib.",
        ),
        15: (
            "the self-test failed",
            "A program's outputs differ from those recorded at build by more than the tolerance.",
            "Do not use the bundle on this machine; build it here and compare.",
        ),
        20: (
            "no such part of a bundle",
            "A program or file was asked for that the bundle does not hold.",
            "Ask for one of those listed, or build the bundle with it.",
        ),
    },
)

declare(
    "DEVICE",
    {
        1: (
            "a bundle for another platform",
            "The programs were traced for another platform than the one asked for.",
            "Run on a platform listed, or build again with `--platform`.",
        ),
        2: (
            "a device count that was not compiled",
            "The device count is part of a program; this one is not among the bundle's.",
            "Use a count listed, or build with `--n-devs`.",
        ),
        3: (
            "too few devices",
            "The programs need more devices than this machine shows.",
            "Use a smaller count or a machine with more devices.",
        ),
    },
)


declare(
    "RUN",
    {
        1: (
            "the run directory can't be written",
            "The path is a file, is read-only, or its disk is full.",
            "Give another `run_dir`, or make this one writable.",
        ),
        2: (
            "another training holds the run directory",
            "A live process has the directory's lock; only one may write it.",
            "Wait for it, stop it, or train in another `run_dir`.",
        ),
        3: (
            "no such run",
            "The directory holds no run, or none with this id.",
            "`nitroc runs` lists those there are.",
        ),
        7: (
            "a replay that can't be read",
            "The directory is no replay of a failed step, or a file of it is damaged.",
            "Name a directory `replay/step-N` of a run directory.",
        ),
        8: (
            "no replay in the run directory",
            "Only a training step at which a guard or the finite guard stops the run leaves one.",
            "Name the run directory of such a run.",
        ),
        9: (
            "a replay of another bundle",
            "The step was made by another bundle's program than the one given.",
            "Give the bundle that the run was trained with; its digest is in the message.",
        ),
    },
)

declare(
    "CKPT",
    {
        1: (
            "no checkpoint",
            "The directory holds no checkpoint of the run asked for.",
            "Train first, or name another run or path.",
        ),
        2: (
            "a damaged checkpoint",
            "A file of the checkpoint is missing, or is not what its meta.json says.",
            "Use an older checkpoint.",
        ),
        3: (
            "a checkpoint of another format",
            "The checkpoint was written in a format this runtime does not know.",
            "Use the nitroc that wrote it, or a newer one.",
        ),
        4: (
            "a checkpoint of another layout",
            "A leaf or slot is missing, extra, or has another shape or dtype than the bundle's.",
            "Build with the structure the checkpoint was trained with, or start a fresh run.",
        ),
        5: (
            "a checkpoint of another structure",
            "A GraphConst value of the run differs from the checkpoint's.",
            "Build with the recorded value, or start a fresh run.",
        ),
        6: (
            "nothing to resume with",
            "`resume` needs a checkpointer, and it is off.",
            "Give a checkpointer, or train without `resume`.",
        ),
        7: (
            "a checkpoint could not be written",
            "The store refused the write: full, read-only or gone.",
            "Free the disk or give another directory; the last checkpoint stands.",
        ),
        8: (
            "a logger can't continue",
            "The checkpoint's logger has state that the run's logger can't take up.",
            "Use the logger the run was started with.",
        ),
    },
)

declare(
    "SCHED",
    {
        1: (
            "not a schedule",
            "Called with the horizon it returned neither a function nor a number.",
            "Return f(step) from the factory, or say nt.schedule(f).",
        ),
        2: (
            "a schedule's value its slot can't hold",
            "The value is not finite, not real, not a scalar, or of another kind than the slot.",
            "Check the schedule at the step that the message names.",
        ),
    },
)

declare(
    "GUARD",
    {
        1: (
            "a guard counted",
            "A count that must stay zero was not: of a `guard`, of values that are not finite "
            "under `assert_finite`, or of values beyond the bound of a `metric` or `diagnostic`. "
            "Nothing of that step was committed; a pass ends without its checkpoint.",
            "Look at the line that is named, or run the step again from its replay directory.",
        ),
        2: (
            "the finite guard stopped the run",
            "The loss, the gradient norm or a scalar of the step was NaN or infinite; nothing of "
            "that step was committed.",
            "Lower the learning rate, clip gradients, or look at the parameter that is named.",
        ),
        3: (
            "a metric that decides is not finite",
            "A ranking or stopping metric was NaN or infinite, with on_nonfinite_metric=error.",
            "Fix the metric, or say on_nonfinite_metric=ignore.",
        ),
    },
)

declare(
    "DATA",
    {
        60: (
            "a step without weight",
            "The weights of a `(sum, weight)` loss add up to no more than 0 over the step.",
            "Check masks and sample weights of the batches of this step.",
        ),
        61: (
            "the wrong number of rows",
            "A batch has other rows than the program was compiled for, or its fields disagree.",
            "Give the number of rows the message states; drop a short last train batch.",
        ),
        62: (
            "a missing field",
            "The batch lacks a field that the program reads.",
            "Add the field; the message lists those it has.",
        ),
        63: (
            "a field of another shape or dtype",
            "A batch's field differs from what the program was compiled for.",
            "Give the shape and dtype that the message states, batch axis first.",
        ),
        64: (
            "not a batch",
            "A prediction takes a dict of fields, batch axis first, or an iterable of such dicts.",
            "Wrap the array: {field: array}.",
        ),
        65: (
            "no such split",
            "The data has no split of this name.",
            "Use one of the splits listed.",
        ),
        66: (
            "an empty epoch",
            "A split gave no batch, or the train batches do not divide by accum.",
            "Check the source's length and batch size.",
        ),
        67: (
            "a metric's value can't be read",
            "The `metrics` hook returned something else than (sum, count), Max, Min or Concat.",
            "Return (sum, count); (sum, None) for a plain sum.",
        ),
        68: (
            "a device array from a host hook",
            "Host-resident `metrics` returned a device array, which would stall the device.",
            "Compute host metrics with numpy.",
        ),
        69: (
            "a metric with a reserved name",
            "Lines of the log and rows of the history have keys of this name.",
            "Give the metric another name.",
        ),
    },
)
