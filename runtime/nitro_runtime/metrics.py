"""Metrics of a pass: what a batch gives, how batches add up, what is reported.

Sums and counts add up in f64 and int64 on the host, over real rows only; a count of 0 gives no
value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from nitro_runtime.data.schema import as_numeric
from nitro_runtime.errors import DataError

LINE_KEYS = frozenset(
    ("type", "context", "epoch", "step", "loss", "nonfinite", "series", "partial")
)
"""What a line of the log and a row of the history call their own; no metric of a pass may."""


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
    """The metrics of one pass, by name, in order of first appearance.

    E-DATA-067 for a metric that is another kind of value than in an earlier batch.
    """

    def __init__(self, split: str) -> None:
        self._split = split
        self._sums: dict[str, tuple[Any, Any]] = {}
        self._extremes: dict[str, Any] = {}
        self._pieces: dict[str, list[np.ndarray]] = {}
        self._kinds: dict[str, str] = {}

    def add_sum(self, name: str, total: Any, count: Any | None) -> None:
        """Adds `(sum, count)`; a count of None makes a plain sum."""
        self._is(name, ("(sum, None)" if count is None else "(sum, count)") + _of_shape(total))
        old_total, old_count = self._sums.get(name, (0, 0))
        more = None if count is None else old_count + _wide(count)
        self._sums[name] = (old_total + _wide(total), more)

    def add_extreme(self, name: str, how: str, value: Any) -> None:
        """Adds a value of which the `max` or `min` is reported; NaN stays NaN."""
        self._is(name, how.capitalize() + _of_shape(value))
        value = _wide(value)
        if name in self._extremes:
            pick = np.maximum if how == "max" else np.minimum
            value = pick(self._extremes[name], value)
        self._extremes[name] = value

    def add_rows(self, name: str, rows: np.ndarray) -> None:
        """Adds rows to be concatenated."""
        shape = ", ".join(["rows", *map(str, rows.shape[1:])])
        self._is(name, f"Concat of [{shape}]" if rows.shape else "Concat of a single value")
        self._pieces.setdefault(name, []).append(rows)

    def _is(self, name: str, kind: str) -> None:
        known = self._kinds.setdefault(name, kind)
        if known != kind or kind == "Concat of a single value":
            found = "" if known == kind else f", and {known} in an earlier batch"
            raise _unreadable(name, self._split, f"{kind}{found}")

    def add_host(self, values: object) -> None:
        """Adds what a host-resident `metrics` hook returned for one batch.

        E-DATA-067 for what is no dict of numpy metrics, E-DATA-068 for a device array, both with
        the metric's name.
        """
        if not isinstance(values, Mapping):
            raise _unreadable("", self._split, f"a {type(values).__name__}")
        for name, value in _named(cast("Mapping[str, Any]", values)):
            self._check(value, name)
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
                    raise _unreadable(name, self._split, f"a {type(value).__name__}")

    def _check(self, value: Any, name: str) -> None:
        """Refuses device arrays, and what no number can be made of."""
        parts = value if isinstance(value, tuple | list) else (getattr(value, "value", value),)
        for part in tuple(parts):
            if hasattr(part, "addressable_shards"):
                raise _device_array(name, self._split)
            if isinstance(value, Concat) or part is None:
                continue
            array = as_numeric(part)
            if array is None or array.dtype.kind == "c":
                raise _unreadable(name, self._split, f"made of {type(part).__name__}")
        if isinstance(value, tuple | list) and value and value[0] is None:
            raise _unreadable(name, self._split, "a sum that is None")

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
        for name in self._kinds:
            if name in self._sums:
                total, count = self._sums[name]
                if count is not None and not np.any(count):
                    empty.append(name)
                    continue
                values[name] = _narrow(total if count is None else total / count)
            elif name in self._extremes:
                values[name] = _narrow(self._extremes[name])
            else:
                values[name] = np.concatenate(self._pieces[name])
        return values, empty


def _named(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _named(cast("Mapping[str, Any]", value), f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _of_shape(value: Any) -> str:
    shape = np.shape(value)
    return f" of shape {list(shape)}" if shape else ""


def _unreadable(name: str, split: str, found: str) -> DataError:
    what = f"metric {name} of split {split} is" if name else f"`metrics` gave for split {split}"
    expected = "(sum, count), Max, Min or Concat" if name else "a dict of metrics by name"
    return DataError(
        67,
        f"{what} {found}, expected {expected}",
        where=f"metrics, {name}" if name else "metrics",
        help="return (sum, count); (sum, None) for a plain sum",
        step_found=True,
    )


def _device_array(name: str, split: str) -> DataError:
    return DataError(
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
