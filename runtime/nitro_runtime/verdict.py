"""What a step's report says of the step: committed, or the error that names why not."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nitro_runtime.errors import DataError, GuardError, NitroError
from nitro_runtime.manifest import Manifest
from nitro_runtime.report_words import Value
from nitro_runtime.training import Flight


def failure(
    values: Mapping[str, Value], flight: Flight, manifest: Manifest, last_checkpoint: str | None
) -> NitroError | None:
    """The error of a step that was not committed, or whose weight was not above 0; else None.

    E-DATA-060 for the weight, E-GUARD-002 naming the loss or the first parameter.
    """
    weight = values.get("weight", 1.0)
    if not math.isnan(weight) and weight <= 0:
        return DataError(
            60,
            f"the weights of step {flight.step} add up to {weight:g}, expected more than 0",
            where=f"loss, epoch {flight.epoch}",
            help="check masks and sample weights of the batches of this step",
            step_found=True,
        )
    if values.get("committed", True):
        return None
    return _finite_guard(values, flight, manifest, last_checkpoint)


def _finite_guard(
    values: Mapping[str, Value], flight: Flight, manifest: Manifest, last_checkpoint: str | None
) -> GuardError:
    name, found = _culprit(values, manifest)
    also = [] if name.startswith("gradient of") else _first_parameter(values, manifest)
    stands = f"last checkpoint: {last_checkpoint}" if last_checkpoint else "no checkpoint yet"
    error = GuardError(
        2,
        f"{name} was {found} at step {flight.step}, expected a finite number; "
        f"it was found in epoch {flight.epoch}",
        also=also,
        help=f"nothing of step {flight.step} was committed; {stands}",
    )
    error.name, error.step, error.epoch = name, flight.step, flight.epoch
    return error


def _culprit(values: Mapping[str, Value], manifest: Manifest) -> tuple[str, str]:
    """What is not finite, loss first, and what it was."""
    loss, norm = values["loss"], values.get("grad_norm")
    if not math.isfinite(loss):
        return "the loss", f"{loss}"
    first = _parameter(values, manifest)
    if first is not None:
        return f"gradient of parameter {first}", "not finite"
    if norm is not None and not math.isfinite(norm):
        return "the gradient norm", f"{norm}"
    return "a scalar of the step, or the gradient norm", "not finite"


def _first_parameter(values: Mapping[str, Value], manifest: Manifest) -> list[str]:
    first = _parameter(values, manifest)
    return [] if first is None else [f"the first parameter whose gradient was not finite: {first}"]


def _parameter(values: Mapping[str, Value], manifest: Manifest) -> str | None:
    """The key path of the first parameter whose gradient was not finite."""
    index = int(values.get("first_bad", -1))
    paths = [leaf.path for g in manifest.groups if g.role == "param" for leaf in g.leaves]
    return paths[index] if 0 <= index < len(paths) else None
