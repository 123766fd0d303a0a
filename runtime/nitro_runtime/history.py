"""What a run has seen: one row per epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, overload


class History(Sequence[dict[str, Any]]):
    """Rows of `epoch`, `step`, `loss` (the mean over the epoch's steps) and every metric.

    `history[-1]` is the last row, `history.epoch(3)` that of epoch 3, `history["val_loss"]` a
    metric over all epochs (None where it had no value).
    """

    def __init__(self, rows: Sequence[dict[str, Any]] = ()) -> None:
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, index: str) -> list[Any]: ...
    def __getitem__(self, index: int | slice | str) -> Any:
        if not isinstance(index, str):
            return self.rows[index]
        if index not in self.columns:
            raise KeyError(f"no metric {index!r}; there are {', '.join(self.columns)}")
        return [row.get(index) for row in self.rows]

    def epoch(self, number: int) -> dict[str, Any]:
        """The row of epoch `number`; KeyError when it is not there."""
        for row in self.rows:
            if row["epoch"] == number:
                return row
        raise KeyError(number)

    @property
    def columns(self) -> list[str]:
        """Every name that some row has, in order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __repr__(self) -> str:
        table = [self.columns, *([_cell(row.get(c)) for c in self.columns] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in table]
        return "\n".join(lines) if self.rows else "no epoch yet"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(row.get(c))}</td>" for c in self.columns) + "</tr>"
            for row in self.rows
        )
        return f"<table><tr>{head}</tr>{body}</table>"

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame; ImportError without pandas."""
        return import_module("pandas").DataFrame(self.rows, columns=self.columns)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
