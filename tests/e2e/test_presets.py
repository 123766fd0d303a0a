"""A preset's name, wherever it was given, is in the records of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from journal import Journal
from whole import Linear

import nitroc as nt
from nitro_runtime.errors import NitroError


class Preset(Linear):
    scale: float = 1.0

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        return {"big": {"scale": 3.0}}


def test_by_position_by_keyword_and_claimed_for_an_instance(tmp_path: Path) -> None:
    options: dict[str, Any] = {"quiet": True, "run_dir": str(tmp_path), "checkpointer": None}

    def recorded(*given: Any, **named: Any) -> tuple[Any, Any]:
        params = nt.Nitro(*given, **named, logger=Journal(), **options).train().logger.params
        return params["preset"], params["scale"]

    assert recorded(Preset, "big") == ("big", 3.0)
    assert recorded(Preset, preset="big") == ("big", 3.0)
    assert recorded(Preset(), preset="big") == ("big", 1.0)
    assert recorded(Preset()) == (None, 1.0)
    with pytest.raises(NitroError, match="E-USAGE-035"):
        nt.Nitro(Preset(), "big", **options)
    with pytest.raises(NitroError, match="E-FIELD-014"):
        nt.Nitro(Preset, "big", preset="big", **options)


def test_of_a_bundle_it_is_in_the_checkpoints_of_its_runs(tmp_path: Path) -> None:
    path = nt.build(Preset, tmp_path / "bundle", preset="big")
    logger = Journal()
    handle = nt.open_bundle(path, quiet=True, run_dir=str(tmp_path / "run"), logger=logger).train()
    assert logger.params["preset"] == "big"
    (entry,) = nt.read_manifest(tmp_path / "run")
    assert nt.checkpoint_info(Path(handle.run_dir) / entry["file"]).preset == "big"
