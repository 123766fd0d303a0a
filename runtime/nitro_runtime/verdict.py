"""What a report says of a step or a pass: it stands, or what kept it from standing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nitro_runtime.errors import DataError, GuardError, GuardFinding, NitroError
from nitro_runtime.manifest import Manifest
from nitro_runtime.marks import Counted
from nitro_runtime.report_words import Value
from nitro_runtime.training import Flight


@dataclass(frozen=True)
class Cause:
    """One thing that kept a step from being committed.

    `head` is what it begins a message with, `more` what else is known of it, a line each. `finding`
    is what the annotation says; `found`: of the finite guard, what was not finite.
    """

    code: str
    head: str
    expected: str
    finding: GuardFinding
    more: tuple[str, ...] = ()
    found: str | None = None

    def also(self) -> list[str]:
        """The lines of a cause that another one stands before."""
        if self.found is not None:
            return [f"{self.head}, expected {self.expected}", *self.more]
        written = f", written at {self.finding.source}" if self.finding.source else ""
        return [f"{self.head}{written}"]


GUARD, FINITE, WEIGHT = "E-GUARD-001", "E-GUARD-002", "E-DATA-060"


def causes(values: Mapping[str, Value], flight: Flight, manifest: Manifest) -> list[Cause]:
    """Why a step was not committed, or has no weight: guards of the training functions, then the
    finite guard, then those of the optimizer, each in the order of the source."""
    weight = values.get("weight", 1.0)
    weightless = weight <= 0 and not math.isnan(weight)
    committed = values.get("committed", True)
    if committed and not weightless:
        return []
    counted = [] if committed else flight.program.marks.counted(values)
    training = [_guard(c) for c in counted if not c.optimizer]
    optimizer = [_guard(c) for c in counted if c.optimizer]
    finite = [_weight(weight, flight.step)] if weightless else []
    if not weightless and ("first_bad" in values or not counted):
        finite = _finite(values, manifest, certain=not counted)
    return [*training, *finite, *optimizer]


def _guard(counted: Counted) -> Cause:
    return Cause(GUARD, counted.said, "0", counted.finding)


def _weight(weight: float, step: int) -> Cause:
    finding = GuardFinding("finite", {}, 1, None)
    head = f"the weights of step {step} add up to {weight:g}"
    return Cause(WEIGHT, head, "more than 0", finding, found="weight")


def _finite(values: Mapping[str, Value], manifest: Manifest, *, certain: bool) -> list[Cause]:
    """The finite guard's cause; nothing when all it is known to look at is finite, unless it is
    `certain` that it failed."""
    loss, norm = values["loss"], values.get("grad_norm", 0.0)
    first = _parameter(values, manifest)
    also: list[str] = []
    if not math.isfinite(loss):
        name, found = "the loss", f"{loss}"
        if first is not None:
            also = [f"the first parameter whose gradient was not finite: {first}"]
    elif first is not None:
        name, found = f"gradient of parameter {first}", "not finite"
    elif not math.isfinite(norm):
        name, found = "the gradient norm", f"{norm}"
    elif certain:
        name, found = "a scalar of the step, or the gradient norm", "not finite"
    else:
        return []
    finding = GuardFinding("finite", {}, 1, None)
    return [
        Cause(FINITE, f"{name} was {found}", "a finite number", finding, tuple(also), found=name)
    ]


def _parameter(values: Mapping[str, Value], manifest: Manifest) -> str | None:
    """The key path of the first parameter whose gradient was not finite."""
    index = int(values.get("first_bad", -1))
    paths = [leaf.path for g in manifest.groups if g.role == "param" for leaf in g.leaves]
    return paths[index] if 0 <= index < len(paths) else None


@dataclass(frozen=True)
class Standing:
    """What is left when a step fails: where it can be replayed, and the last checkpoint."""

    replay: str | None = None
    checkpoint: str | None = None

    def said(self, step: int) -> str:
        """The message's last line."""
        parts = [f"nothing of step {step} was committed"]
        parts += [f"replay: {self.replay}"] if self.replay is not None else []
        return "; ".join([*parts, last(self.checkpoint)])


def last(checkpoint: str | None) -> str:
    """`last checkpoint: ...`, or that there is none."""
    return f"last checkpoint: {checkpoint}" if checkpoint else "no checkpoint yet"


def step_error(found: Sequence[Cause], flight: Flight, standing: Standing) -> NitroError:
    """The error of a failed step, headed by the first cause: E-GUARD-001 for a guard, E-GUARD-002
    for the finite guard, E-DATA-060 for the weights of the step."""
    head, *others = found
    also = [*head.more, *(line for cause in others for line in cause.also())]
    if head.code == WEIGHT:
        return DataError(
            60,
            f"{head.head}, expected {head.expected}",
            where=f"loss, epoch {flight.epoch}",
            help="check masks and sample weights of the batches of this step",
            also=also,
            step_found=True,
        )
    source = head.finding.source
    written = f"it is written at {source}" if source else None
    error = GuardError(
        1 if head.code == GUARD else 2,
        f"{head.head} at step {flight.step}, expected {head.expected}",
        where=written if head.code == GUARD else f"it was found in epoch {flight.epoch}",
        also=also,
        help=standing.said(flight.step),
    )
    error.name, error.step, error.epoch = head.found or head.finding.name, flight.step, flight.epoch
    error.split = "train"
    if head.code == GUARD:
        error.meta, error.count, error.source = head.finding.meta, head.finding.count, source
    error.others = tuple(cause.finding for cause in others)
    return error


@dataclass(frozen=True)
class Pass:
    """Which pass it was, and what it came to."""

    split: str
    step: int
    epoch: int
    metrics: Mapping[str, Any] = field(default_factory=dict[str, Any])


def pass_error(counted: Sequence[Counted], made: Pass, help: str | None = None) -> GuardError:
    """E-GUARD-001 of a pass whose guards counted; its metrics are on the error."""
    first, *others = counted
    source = first.finding.source
    error = GuardError(
        1,
        f"{first.said} in evaluation of {made.split} at step {made.step}, expected 0",
        where=f"it is written at {source}" if source else None,
        also=[line for other in others for line in _guard(other).also()],
        help=help or "the pass was made to its end; look at the line that is named",
    )
    finding = first.finding
    error.name, error.meta, error.count = finding.name, finding.meta, finding.count
    error.source, error.step, error.epoch = source, made.step, made.epoch
    error.stage, error.split = "evaluate", made.split
    error.others = tuple(other.finding for other in others)
    error.metrics = dict(made.metrics)
    return error
