"""Finding the first number of a failed step that is not finite: `nitroc run --locate-nonfinite`.

The step is run again twice, without the experiment's Python: by the program that made it, which
says whether it fails here too, and by its gradient function with a look after every operation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nitro_runtime import replay
from nitro_runtime.bundle import Bundle
from nitro_runtime.machine import CONSTANTS
from nitro_runtime.manifest import Manifest
from nitro_runtime.progress import display
from nitro_runtime.rerun import Again, check_bundle, rerun
from nitro_runtime.setup import find_device
from nitroc import nonfinite
from nitroc.frontend.instrument import HELD_INFINITE, HELD_NAN, INFINITE, NAN
from nitroc.nonfinite import INFINITY, OPERATION, Nonfinite
from nitroc.nonfinite import NAN as NOT_A_NUMBER
from nitroc.replaying import Micro, Replaying

MEANT = ("batch field", "constant")
"""What may well hold an infinity, as a mask that is added does."""

MORE = 3
"""How many further operations are named that made the same kind of number by themselves."""


@dataclass(frozen=True)
class Located:
    """What a failed step came to when it was run again.

    replay: its directory. error: what the run said, code first. findings: what was not finite, in
    the order in which it came up, `findings[0]` first of all. said: what else there is to say; why,
    when there are no findings. micros: how many micro-batches the step has.
    """

    replay: str
    run_id: str
    step: int
    error: str
    findings: tuple[Nonfinite, ...]
    said: tuple[str, ...]
    micros: int

    @property
    def found(self) -> bool:
        """Whether anything was."""
        return bool(self.findings)

    def text(self) -> str:
        """The lines that the command prints."""
        lines = [
            f"step {self.step} of run {self.run_id}, from {self.replay}",
            f"it was stopped by {self.error}",
        ]
        kinds: set[str] = set()
        for index, found in enumerate(self.findings):
            line = found.text(self.micros, first=found.kind not in kinds)
            lines.append(f"also: {line}" if index else line)
            kinds.add(found.kind)
        return "\n".join([*lines, *self.said])


def locate_nonfinite(
    bundle: str | Path,
    run_dir: str | Path,
    *,
    backend: str | None = None,
    quiet: bool = False,
) -> Located:
    """Runs the failed step that a run left in `run_dir` again, on the bundle it was trained with.

    No data source is read and no Python of the bundle is imported. E-RUN-007 and -008 for no
    replay, E-RUN-009 for one of another bundle.
    """
    opened = Bundle.open(bundle)
    path = replay.newest(run_dir)
    failed = replay.read(path)
    check_bundle(opened, failed)
    device = find_device(opened.manifest, backend)
    say = display(quiet).say
    again = rerun(opened, failed, device, say)
    micros = opened.program(failed.record["program"]).dims.get("accum", 1)
    error = failed.record["error"]
    located = Located(
        str(path),
        failed.record["run_id"],
        failed.record["step"],
        f"{error['code']}: {error['what']}",
        (),
        (),
        micros,
    )
    if again.finite:
        loss = again.values["loss"]
        return replace(located, said=(f"it comes out finite here: it is committed, loss {loss:g}",))
    found = tuple(
        _Search(Replaying(opened, failed, device), again.lost(opened.manifest)).findings()
    )
    if found:
        return replace(located, findings=found, said=tuple(_unlocated(found)))
    return replace(located, said=tuple(_unfound(again, opened.manifest)))


def _unlocated(found: tuple[Nonfinite, ...]) -> Iterator[str]:
    operations = [one for one in found if one.what == OPERATION]
    if operations and not any(one.source for one in operations):
        yield "the bundle has no lines: it was built with --strip-locs"


def _unfound(again: Again, manifest: Manifest) -> Iterator[str]:
    """Why a step that fails here has nothing that its functions made, or were given."""
    heads = "; ".join(cause.head for cause in again.causes)
    if again.lost(manifest):
        yield f"it fails here too: {heads}"
        yield (
            "every operation of its functions is finite, and so is all they are given: what is not "
            "is made after them, by accumulation, the norm of the gradient, clip or the optimizer"
        )
    else:
        yield f"it is stopped here too: {heads}"
        yield (
            "everything is finite: what its functions are given, every operation, the loss and the "
            "gradient"
        )


class _Search:
    """One failed step, looked through for what is not finite."""

    def __init__(self, replaying: Replaying, lost: bool) -> None:
        self.replaying = replaying
        self.lost = lost

    def findings(self) -> list[Nonfinite]:
        """All that is to be said, in this order: what the functions are given, operations that made
        a NaN, those that made an infinity.

        Infinities in a batch or a constant may be meant, and so may what is written in the program:
        they count when nothing else explains a value that was lost.
        """
        given = list(self._given())
        sure = [g for g in given if g.kind == NOT_A_NUMBER or g.what not in MEANT]
        micros = list(self._micros())
        found = [*sure, *self._made(micros)]
        if found or not self.lost:
            return found
        return [*given, *self._held(micros)]

    def _given(self) -> Iterator[Nonfinite]:
        failed, bundle = self.replaying.failed, self.replaying.bundle
        yield from nonfinite.found_in_state(failed.state)
        yield from nonfinite.found_in_scalars(failed.record["scalars"], bundle.manifest.fields)
        yield from nonfinite.found_in_batch(failed.batch)
        stored = bundle.arrays(CONSTANTS)
        consts = {n.removeprefix("const/"): a for n, a in stored.items() if n.startswith("const/")}
        yield from nonfinite.found_in_constants(consts)

    def _micros(self) -> Iterator[Micro]:
        """Up to the first one in which an operation makes a NaN: the next begin with its state."""
        for micro in self.replaying.micros():
            yield micro
            if micro.first[NAN] is not None:
                return

    def _made(self, micros: Sequence[Micro]) -> Iterator[Nonfinite]:
        nans = list(self._each(NOT_A_NUMBER, NAN, micros))
        infinities = self._each(INFINITY, INFINITE, micros)
        yield from nans
        yield from itertools.islice(infinities, 1) if nans else infinities

    def _each(self, kind: str, entry: int, micros: Sequence[Micro]) -> Iterator[Nonfinite]:
        """The first operation, then those that made the same kind of number by themselves: the
        first may be one whose result is selected away."""
        micro = next((m for m in micros if m.first[entry] is not None), None)
        ignored: list[int] = []
        while micro is not None and (number := micro.first[entry]) is not None:
            yield self.replaying.operation(kind, number, micro)
            ignored.append(number)
            if len(ignored) > MORE:
                return
            micro = self.replaying.without(micro, ignored)

    def _held(self, micros: Sequence[Micro]) -> Iterator[Nonfinite]:
        """The first operation that lets what is not finite into the data."""
        for kind, entry in ((NOT_A_NUMBER, HELD_NAN), (INFINITY, HELD_INFINITE)):
            for micro in micros:
                if (number := micro.first[entry]) is not None:
                    yield self.replaying.operation(kind, number, micro)
                    return
