"""What the binding report says of groups, the step, and options that hold objects."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from declared import batches, set_up, tiny

import nitroc as nt
from nitro_runtime.data import arrays
from nitroc.building import build_files
from nitroc.lowering import Target
from nitroc.rules import SGD


def rows(experiment: nt.Experiment, **options: Any) -> dict[str, str]:
    """The lines of the report by name, without their padding."""
    text = set_up(experiment, **options).report.text()
    named = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    return {name: " ".join(value.split()) for name, value in named}


def deep(dtype: Any = jnp.float32) -> Any:
    def build_model(self: Any, key: Any) -> Any:
        layers = [{"w": jnp.ones((3, 3), dtype), "b": jnp.zeros(3)} for _ in range(3)]
        return None, {"block": layers, "head": jnp.ones((3, 2))}, {"seen": jnp.zeros(())}

    return build_model


def test_every_leaf_is_listed_as_decayed_or_exempt_with_counts() -> None:
    found = rows(tiny(build_model=deep(), weight_decay=lambda self, group: 0.5))
    assert found["default"] == "7 leaves, 42 values"
    assert found["default.decayed"] == "4 leaves: block.#{0..2}.w, head"
    assert found["default.exempt"] == "3 leaves: block.#{0..2}.b"
    assert found["default.frozen"] == "none"
    assert found["default.anchor"] == "zero"
    assert found["default.masters"] == "none, no leaf is narrower than f32"
    assert found["state"] == "1 leaf"


def test_without_a_decay_stage_every_leaf_is_exempt() -> None:
    found = rows(tiny())
    assert found["default.decayed"] == "none, there is no decay stage"
    assert found["default.exempt"] == "2 leaves: b, w"
    assert "default.anchor" not in found


def test_rule_level_rate_and_slots() -> None:
    assert rows(tiny())["default.rule"] == "radam (level 0)"
    found = rows(
        tiny(optimizer=lambda self, group: SGD, learning_rate=lambda self, group: 0.1234567891)
    )
    assert found["default.rule"] == "sgd (level 1)"
    assert found["default.learning_rate"] == "0.1234567891, 1.0 of the base"
    assert found["default.slots"] == "none (f32)"
    assert found["learning_rate"] == "0.1234567891 (attribute)"


@pytest.mark.parametrize(
    ("master", "said"),
    [
        (True, "f32 beside 3 leaves: block.#{0..2}.w"),
        (False, "declined, updates are rounded into 3 leaves: block.#{0..2}.w"),
    ],
)
def test_masters_of_narrow_leaves(master: bool, said: str) -> None:
    found = rows(tiny(build_model=deep(jnp.bfloat16)), master_weights=master)
    assert found["default.masters"] == said


def test_the_step() -> None:
    found = rows(tiny(batches(4)), accum=2, gradient_clip_norm=0.5, guard_finite=False)
    assert found["accumulation"] == "2 micro-batches per step"
    assert found["clip"] == "global norm 0.5 of the accumulated gradient"
    assert found["finite"] == "guard off"
    assert rows(tiny())["clip"] == "off"


def test_objects_that_nothing_decided_are_the_runtimes_own() -> None:
    found = rows(tiny())
    assert found["logger"] == "JSONLogger() (default)"
    assert found["checkpointer"] == "TopKCheckpointer() (default)"
    assert rows(tiny(), logger=None)["logger"] == "None (keyword)"
    assert rows(tiny(), schedules={"b1": lambda step: 0.5})["schedules"] == "b1 (keyword)"


def test_a_loss_without_a_weight_is_said_once_to_be_a_mean_of_means() -> None:
    text = built_report(tiny())
    assert text.count("a mean of means") == 1
    assert text.count("train_step") == 1

    def loss(self: Any, outputs: Any, *, label: Any) -> Any:
        return outputs.sum(), 4.0

    text = built_report(tiny(loss=loss))
    assert "a mean of means" not in text
    assert text.count("loss is (sum, weight)") == 1


class Scaled(nt.Experiment):
    """Of its Device fields a hook reads one, the optimizer another, nothing the third."""

    scale: nt.Device[float] = 0.5
    b1: nt.Device[float] = 0.9
    idle: nt.Device[float] = 0.5

    def build_data(self) -> Any:
        return {"train": batches()}

    def build_model(self, key: Any) -> Any:
        return None, {"idle": jnp.ones((3, 2))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return x @ params["idle"] * self.scale, state

    def loss(self, outputs: Any, *, label: Any) -> Any:
        return outputs.mean() + self.idle * 0


def test_a_device_field_that_no_program_reads_is_said() -> None:
    def loss(self: Any, outputs: Any, *, label: Any) -> Any:
        return outputs.mean()

    said = "is read by no traced hook"
    assert said not in built_report(Scaled())
    text = built_report(type("Idle", (Scaled,), {"loss": loss})())
    assert f"Device idle {said}" in text
    assert text.count(said) == 1


def test_splits_looked_at_when_building_are_reported_once() -> None:
    def build_data(self: Any) -> Any:
        fields = {"x": jnp.ones((10, 3)), "label": jnp.zeros(10, jnp.int32)}
        return {"train": batches(), "test": arrays(fields, 4)}

    text = built_report(tiny(build_data=build_data))
    assert text.count("3 batches of 4 rows, the last of 2") == 1


def built_report(experiment: nt.Experiment) -> str:
    setup = set_up(experiment)
    build_files(setup, Target())
    return setup.report.text()
