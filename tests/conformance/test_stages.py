"""Stages of a compilation: texts that parse back, passes on re-read text, going on from a dump."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole import Linear, rows

import nitroc as nt
from nitro_dialect import parse, print_module
from nitro_runtime.bundle import Bundle
from nitro_runtime.errors import NitroError
from nitroc.emit.program import program_text
from nitroc.passes import pipeline

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits" / "exp.py"
OPTIONS: dict[str, Any] = {"accum": 4, "gradient_clip_norm": 1.0}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bundle/` of the digits example with every pass, and its `stages/`."""
    root = tmp_path_factory.mktemp("digits")
    nt.build(str(EXAMPLE), root / "bundle", dump_ir=root / "stages", **OPTIONS)
    return root


def stages(root: Path) -> list[Path]:
    return sorted((root / "stages").glob("*.nir"))


def test_B07_every_stage_parses_back_to_an_equal_module(built: Path) -> None:
    names = [path.stem.partition("-")[2] for path in stages(built)]
    assert names == ["import", "differentiate", "accumulate", "clip", "guard", "optimizer", "decay",
                     "commit", "expand"]  # fmt: skip
    for path in stages(built):
        text = path.read_text()
        module = parse(text)
        assert print_module(module, locations=True) == text
        assert parse(print_module(module)) == parse(print_module(parse(print_module(module))))


def test_B07_a_pass_on_re_read_text_gives_the_next_stage(built: Path) -> None:
    texts = [path.read_text() for path in stages(built)]
    for start, text in enumerate(texts):
        again: list[str] = []

        def keep(_: int, name: str, module: Any, made: list[str] = again) -> None:
            made.append(print_module(module, locations=True))

        pipeline.run(parse(text), on_stage=keep)
        assert again[-(len(texts) - start - 1) :] == texts[start + 1 :] or start + 1 == len(texts)


@pytest.mark.parametrize("stage", range(9))
def test_B07_any_dump_goes_on_to_the_same_programs(
    built: Path, tmp_path: Path, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dump is all there is: its folder is copied, and nothing of the experiment is imported."""
    shutil.copytree(built / "stages", tmp_path / "stages")
    monkeypatch.setattr("nitroc.sources.load", lambda *_: pytest.fail("the experiment was loaded"))
    made = nt.build_from(
        tmp_path / "stages" / stages(built)[stage].name,
        tmp_path / "again",
        weights=built / "bundle" / "weights" / "init.safetensors",
    )
    first, again = Bundle.open(built / "bundle"), Bundle.open(made)
    assert list(again.manifest.programs) == list(first.manifest.programs)
    for name in first.manifest.programs:
        assert stablehlo(again, name) == stablehlo(first, name), name


def test_B07_what_was_found_of_the_rows_goes_on_too(tmp_path: Path) -> None:
    path = nt.build(Linear(), tmp_path / "bundle", dump_ir=tmp_path / "ir")
    weights = path / "weights" / "init.safetensors"
    again = nt.build_from(tmp_path / "ir" / "03-guard.nir", tmp_path / "again", weights=weights)
    assert Bundle.open(again).manifest.batching == Bundle.open(path).manifest.batching
    val = rows(6, 1)
    options: dict[str, Any] = {"quiet": True, "run_dir": str(tmp_path / "run")}
    opened = nt.open_bundle(again, data={"train": rows(16), "val": val}, **options)
    error = val["x"].sum(1) - val["y"]
    np.testing.assert_allclose(opened.validate()["val_loss"], (error**2).mean(), rtol=1e-5)


@pytest.mark.parametrize("text", ["{}", "[]", '{"row_independent":1,"schedules":{}}', "\xff"])
def test_what_stands_beside_a_dump_is_read_with_care(tmp_path: Path, text: str) -> None:
    path = nt.build(Linear(), tmp_path / "bundle", dump_ir=tmp_path / "ir")
    (tmp_path / "ir" / "recorded.json").write_text(text, encoding="latin-1")
    with pytest.raises(NitroError, match="E-BUILD-088"):
        nt.build_from(
            tmp_path / "ir" / "00-import.nir",
            tmp_path / "again",
            weights=path / "weights" / "init.safetensors",
        )


def stablehlo(bundle: Bundle, name: str) -> str:
    """The text with locations: bytecode also holds the order in which a value's uses were made."""
    return program_text(bundle.artifact(name), locations=True)


def without_guard(text: str) -> str:
    """A module text whose pipeline has no guard."""
    lines = [
        line.replace("guard{finite=true,policy=stop},", "") if "guard{" in line else line
        for line in text.splitlines(keepends=True)
    ]
    assert "".join(lines) != text
    return "".join(lines)


def test_D06_without_a_guard_nothing_of_it_is_emitted(tmp_path: Path) -> None:
    def build(name: str, **options: Any) -> Path:
        return nt.build(str(EXAMPLE), tmp_path / name, dump_ir=tmp_path / f"{name}-ir", **options)

    plain = Bundle.open(build("plain", guard_finite=False))
    build("guarded")
    for path in sorted((tmp_path / "plain-ir").glob("*.nir")):
        words = path.read_text()
        for word in ("guard.", "%halted", "%ok", "is_finite", "first_nonfinite"):
            assert word not in words, (path.name, word)
    source = tmp_path / "guarded-ir" / "00-import.nir"
    source.write_text(without_guard(source.read_text()))
    weights = tmp_path / "plain" / "weights" / "init.safetensors"
    left_out = Bundle.open(nt.build_from(source, tmp_path / "left_out", weights=weights))
    for name in plain.manifest.programs:
        assert stablehlo(left_out, name) == stablehlo(plain, name)
