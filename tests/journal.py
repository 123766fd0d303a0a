"""A logger that keeps what it is told, for tests of what a run reports."""

from __future__ import annotations

from typing import Any


class Journal:
    """Lines by context; `params`, `others` and `status` as the run gave them."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, Any]]] = []
        self.params: dict[str, Any] = {}
        self.others: list[tuple[str, Any]] = []
        self.status: str | None = None

    def log_params(self, params: dict[str, Any], **_: Any) -> None:
        self.params = dict(params)

    def log_metrics(
        self, metrics: dict[str, Any], *, step: int, epoch: int, context: str, **_: Any
    ) -> None:
        self.rows.append((context, {**metrics, "step": step, "epoch": epoch}))

    def log_other(self, key: str, value: Any, **_: Any) -> None:
        self.others.append((key, value))

    def finish(self, status: str, **_: Any) -> None:
        self.status = status

    def lines(self, context: str) -> list[dict[str, Any]]:
        """The lines of `train`, `validate` or `data`, in order."""
        return [row for kind, row in self.rows if kind == context]
