"""Run options: order of sources, ranges, markers; `--set` and presets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from declared import Tiny, refused, set_up

from nitro_runtime.errors import NitroError
from nitroc.frontend import fields as nt
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.options import OPTIONS, resolve, run_options
from nitroc.frontend.settings import (
    from_preset,
    preset_values,
    presets,
    read_settings,
    split_keywords,
)


class Plain(Experiment):
    pass


class Chosen(Experiment):
    max_epochs: int = 5
    checkpoint: str = "mine"

    @property
    def log_every(self) -> int:
        return self.max_epochs * 2

    def seed(self) -> int:
        return 7


def test_keyword_before_record_before_attribute_before_default() -> None:
    def decided(keywords: dict[str, Any], recorded: dict[str, Any]) -> tuple[Any, str]:
        option = resolve(Chosen(), keywords, recorded)["max_epochs"]
        return option.value, option.source

    assert decided({"max_epochs": 1}, {"max_epochs": 2}) == (1, "keyword")
    assert decided({}, {"max_epochs": 2}) == (2, "recorded")
    assert decided({}, {}) == (5, "attribute")
    assert resolve(Plain(), {}, {})["max_epochs"].source == "default"


def test_an_attribute_may_be_a_property_or_a_method() -> None:
    options = resolve(Chosen(), {}, {})
    assert (options["log_every"].value, options["seed"].value) == (10, 7)


def test_an_option_that_is_no_attribute_leaves_the_field_alone() -> None:
    assert resolve(Chosen(), {}, {})["checkpoint"].value is None


def test_only_what_changes_programs_is_baked() -> None:
    baked = {name for name, option in resolve(Plain(), {}, {}).items() if option.baked}
    assert baked == {
        "accum",
        "gradient_clip_norm",
        "guard_finite",
        "on_nonfinite",
        "master_weights",
        "layout",
        "fuse",
        "n_devs",
        "zero",
    }


OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("seed", -1),
    ("seed", 2**63),
    ("seed", 1.0),
    ("max_epochs", -1),
    ("max_epochs", True),
    ("max_steps", 0),
    ("max_time", 0),
    ("max_time", "soon"),
    ("accum", 0),
    ("gradient_clip_norm", -1.0),
    ("gradient_clip_norm", float("nan")),
    ("gradient_clip_norm", float("inf")),
    ("guard_finite", "yes"),
    ("on_nonfinite", "ignore"),
    ("master_weights", 1),
    ("max_skips", -1),
    ("on_nonfinite_metric", "skip"),
    ("layout", "packed"),
    ("fuse", 0),
    ("n_devs", 0),
    ("schedules", 3),
    ("schedule_total", 0),
    ("log_every", 0),
    ("sample_every", 0),
    ("diagnostics", "loss"),
    ("every_steps", 0),
    ("every_minutes", 0),
    ("tags", "a"),
    ("resume", 3),
    ("data", [1]),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_out_of_range_states_the_range(name: str, value: Any) -> None:
    error = refused("E-USAGE-002", lambda: resolve(Plain(), {name: value}, {}))
    assert OPTIONS[name].range in error.what
    assert error.exit == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guard_finite", "update"),
        ("on_nonfinite", "skip"),
        ("fuse", 4),
        ("n_devs", 2),
        ("zero", True),
        ("every_steps", 10),
        ("every_minutes", 1.5),
        ("keep_guards", True),
    ],
)
def test_what_this_version_lacks_is_refused(name: str, value: Any) -> None:
    error = refused("E-USAGE-003", lambda: resolve(Plain(), {name: value}, {}))
    assert name in error.what


def test_numpy_scalars_are_values() -> None:
    assert resolve(Plain(), {"accum": np.int64(4)}, {})["accum"].value == 4


def test_unknown_option() -> None:
    error = refused("E-USAGE-001", lambda: resolve(Plain(), {"max_epoch": 3}, {}))
    assert error.help is not None
    assert "did you mean max_epochs?" in error.help


@pytest.mark.parametrize(
    ("name", "marker", "allowed"),
    [
        ("max_epochs", nt.GraphConst[int], False),
        ("max_epochs", nt.Device[int], False),
        ("accum", nt.Device[int], False),
        ("accum", nt.GraphConst[int], True),
    ],
)
def test_markers_of_option_fields(name: str, marker: Any, allowed: bool) -> None:
    cls = type("Marked", (Experiment,), {"__annotations__": {name: marker}, name: 1})
    if allowed:
        assert resolve(cls(), {}, {})[name].value == 1
    else:
        assert name in refused("E-FIELD-010", lambda: resolve(cls(), {}, {})).what


def test_a_field_named_like_an_option_holds_the_resolved_one() -> None:
    seen: list[int] = []

    class Counting(Tiny):
        max_epochs: int = 5

        def build_data(self) -> dict[str, Any]:
            seen.append(self.max_epochs)
            return super().build_data()

    setup = set_up(Counting(), max_epochs=9)
    assert seen == [9]
    assert setup.host["max_epochs"] == 9


def test_run_options() -> None:
    options = run_options(Plain(), resolve(Plain(), {"max_time": "2m", "tags": ["a"]}, {}))
    assert (options.seconds, options.tags) == (120.0, ("a",))
    assert options.run_dir == Path("runs/Plain")


# --- --set --------------------------------------------------------------------------------------


class Settable(Experiment):
    width: nt.GraphConst[int] = 4
    rate: nt.Device[float] = 0.1
    label: str = "a"
    sizes: list[int] = dataclasses.field(default_factory=list[int])

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        return {"wide": {"width": 64}, "slow": {"rate": 0.01}}


def test_settings_are_fields_and_options() -> None:
    texts = {"width": "8", "rate": "1e-2", "label": "b", "accum": "2", "early_stop": "none"}
    settings = read_settings(Settable, texts, command="build")
    assert settings.fields == {"width": 8, "rate": 1e-2, "label": "b"}
    assert settings.options == {"accum": 2, "early_stop": None}


@pytest.mark.parametrize(
    ("text", "command", "code"),
    [
        ("widht=8", "build", "E-USAGE-001"),
        ("width=wide", "build", "E-USAGE-004"),
        ("width=1.5", "build", "E-USAGE-004"),
        ("accum=0", "build", "E-USAGE-002"),
        ("logger=Mine", "build", "E-USAGE-004"),
        ("sizes=[1]", "build", "E-USAGE-006"),
        ("width=8", "run", "E-USAGE-005"),
        ("accum=2", "run", "E-USAGE-005"),
    ],
)
def test_settings_refused(text: str, command: Any, code: str) -> None:
    name, _, value = text.partition("=")
    error = refused(code, lambda: read_settings(Settable, {name: value}, command=command))
    assert name in error.what
    assert error.exit == 2


@pytest.mark.parametrize("name", ["width", "accum"])
def test_a_graphconst_or_baked_setting_on_run_says_build_again(name: str) -> None:
    error = refused("E-USAGE-005", lambda: read_settings(Settable, {name: "2"}, command="run"))
    assert error.help is not None
    assert "build again" in error.help


# --- presets ------------------------------------------------------------------------------------


def test_presets() -> None:
    assert from_preset(Settable, "wide", rate=0.5).width == 64
    assert preset_values(Settable, "slow") == {"rate": 0.01}
    error = refused("E-FIELD-011", lambda: from_preset(Settable, "wid"))
    assert error.help is not None
    assert "did you mean wide?" in error.help
    assert "no presets" in refused("E-FIELD-011", lambda: from_preset(Plain, "wide")).what
    assert refused("E-FIELD-015", lambda: from_preset(Settable, "wide", widht=3))


def test_presets_are_checked() -> None:
    def bad(cls: Any) -> Any:
        return {"wide": {"widht": 3}}

    unknown = type("Unknown", (Settable,), {"presets": classmethod(bad)})
    assert "widht" in refused("E-FIELD-015", lambda: presets(unknown)).what
    plain = type("NoClassmethod", (Settable,), {"presets": bad})
    assert "classmethod" in refused("E-HOOK-002", lambda: presets(plain)).what


def test_keywords_split_into_fields_and_options() -> None:
    assert split_keywords(Settable, {"width": 8, "max_epochs": 2}) == (
        {"width": 8},
        {"max_epochs": 2},
    )

    def neither() -> object:
        return split_keywords(Settable, {"widht": 8})

    error: NitroError = refused("E-FIELD-015", neither)
    assert "max_epochs" in error.also[0]
    assert refused("E-FIELD-014", lambda: split_keywords(Settable, {"preset": "wide"}))
