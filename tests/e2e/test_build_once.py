"""What a build asks of the user's code, it asks once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whole import Linear

import nitroc as nt

ASKED: list[int] = []


def curve(index: int) -> float:
    ASKED.append(index)
    return 1e-2


class Scheduled(Linear):
    @property
    def schedules(self) -> dict[str, Any]:
        return {"learning_rate": nt.schedule(curve)}


def test_a_schedule_is_asked_once_for_its_recorded_table(tmp_path: Path) -> None:
    ASKED.clear()
    nt.build(Scheduled(), tmp_path / "bundle")
    assert ASKED
    assert list(range(len(ASKED))) == ASKED
