"""Metrics of a pass: what a batch gives, how batches add up, what is reported.

Sums and counts add up in f64 and int64 on the host, over real rows only; a count of 0 gives no
value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from nitro_runtime.errors import DataError


@dataclass(frozen=True)
class Max:
    """The largest value over a pass."""

    value: Any


@dataclass(frozen=True)
class Min:
    """The smallest value over a pass."""

    value: Any


@dataclass(frozen=True)
class Concat:
    """Rows of all batches end to end, in order."""

    value: Any


class Accumulator:
    """The metrics of one pass, by name, in order of first appearance."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Any, Any]] = {}
        self._extremes: dict[str, tuple[str, Any]] = {}
        self._pieces: dict[str, list[np.ndarray]] = {}
        self._order: dict[str, None] = {}

    def add_sum(self, name: str, total: Any, count: Any | None) -> None:
        """Adds `(sum, count)`; a count of None makes a plain sum."""
        self._order[name] = None
        old_total, old_count = self._sums.get(name, (0, None if count is None else 0))
        more = None if count is None else _wide(count)
        self._sums[name] = (
            old_total + _wide(total),
            None if more is None else old_count + more,
        )

    def add_extreme(self, name: str, how: str, value: Any) -> None:
        """Adds a value of which the `max` or `min` is reported; NaN stays NaN."""
        self._order[name] = None
        value = _wide(value)
        if name in self._extremes:
            pick = np.maximum if how == "max" else np.minimum
            value = pick(self._extremes[name][1], value)
        self._extremes[name] = (how, value)

    def add_rows(self, name: str, rows: np.ndarray) -> None:
        """Adds rows to be concatenated."""
        self._order[name] = None
        self._pieces.setdefault(name, []).append(np.asarray(rows))

    def add_host(self, values: Mapping[str, Any], split: str) -> None:
        """Adds what a host-resident `metrics` hook returned for one batch."""
        for name, value in _named(values):
            _refuse_device_array(value, name, split)
            match value:
                case Max(inner):
                    self.add_extreme(name, "max", inner)
                case Min(inner):
                    self.add_extreme(name, "min", inner)
                case Concat(inner):
                    self.add_rows(name, np.asarray(inner))
                case (total, count):
                    self.add_sum(name, total, count)
                case _:
                    raise DataError(
                        67,
                        f"metric {name} of split {split} is a {type(value).__name__}, expected "
                        "(sum, count), Max, Min or Concat",
                        where=f"metrics, {name}",
                        help="return (sum, count); (sum, None) for a plain sum",
                        step_found=True,
                    )

    def add_words(self, values: Mapping[str, Any]) -> None:
        """Adds the words of a reduce program: `loss.sum`, `metric.<name>.count`, ..."""
        for word, value in values.items():
            name, _, part = word.rpartition(".")
            shown = "val_loss" if name == "loss" else name.removeprefix("metric.")
            count = "loss.weight" if name == "loss" else f"{name}.count"
            if part == "sum":
                self.add_sum(shown, value, values.get(count))
            elif part in ("max", "min"):
                self.add_extreme(shown, part, value)

    def reduced(self) -> tuple[dict[str, Any], list[str]]:
        """The quotients and reduced values by name, and the names that had no data."""
        values: dict[str, Any] = {}
        empty: list[str] = []
        for name in self._order:
            if name in self._sums:
                total, count = self._sums[name]
                if count is not None and not np.any(count):
                    empty.append(name)
                    continue
                values[name] = _narrow(total if count is None else total / count)
            elif name in self._extremes:
                values[name] = _narrow(self._extremes[name][1])
            else:
                values[name] = np.concatenate(self._pieces[name])
        return values, empty


def _named(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _named(cast("Mapping[str, Any]", value), f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _refuse_device_array(value: Any, name: str, split: str) -> None:
    parts = value if isinstance(value, tuple) else (getattr(value, "value", value),)
    for part in cast("tuple[Any, ...]", parts):
        if hasattr(part, "addressable_shards"):
            raise DataError(
                68,
                f"metric {name} of split {split} is a device array, expected numpy",
                where=f"metrics, {name}",
                help="compute host-resident metrics with numpy",
                step_found=True,
            )


def _wide(value: Any) -> Any:
    """f64 or int64, so that adding up loses nothing that a batch had."""
    array = np.asarray(value)
    wide = array.astype(np.int64 if array.dtype.kind in "iub" else np.float64)
    return wide if wide.shape else wide[()]


def _narrow(value: Any) -> Any:
    """Python numbers for scalars; arrays stay arrays."""
    return value.item() if isinstance(value, np.generic) else value
