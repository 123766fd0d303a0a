"""Routing: which fields each hook is handed, what prepare makes, other splits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from declared import Tiny, batches, refused, set_up, tiny

from nitroc.frontend import fields as nt


def takes(*names: str, **defaults: Any) -> Any:
    """A loss of these keyword-only fields, optional ones with their defaults."""
    parts = [*names, *(f"{name}={value!r}" for name, value in defaults.items())]
    scope: dict[str, Any] = {}
    exec(f"def loss(self, outputs, *, {', '.join(parts)}): return outputs.mean()", scope)
    return scope["loss"]


def test_only_the_union_is_transferred() -> None:
    setup = set_up(tiny(batches(unused=np.zeros(4), id=list("abcd"))))
    train = setup.schema["train"]
    assert set(train.fields) == {"x", "label"}
    assert train.unrouted == {"unused": "f64[4]", "id": "list of str"}
    assert setup.routing["forward"].fields == ("x",)
    assert setup.routing["loss"].required == ("label",)
    assert setup.routing["loss"].where.endswith(f"declared.py:{_line(Tiny.loss)}")


def _line(function: Any) -> int:
    return function.__code__.co_firstlineno


def test_a_missing_field_names_hook_line_and_the_near_miss() -> None:
    error = refused("E-HOOK-003", lambda: set_up(tiny(loss=takes("labels"))))
    assert "hook loss" in error.what
    assert "'labels'" in error.what
    assert error.help is not None
    assert "did you mean label? the fields are label, x" in error.help


def test_optional_fields() -> None:
    setup = set_up(tiny(loss=takes("label", mask=None)))
    assert setup.routing["loss"].absent == ("mask",)
    assert "mask absent, default taken" in setup.report.text()
    present = set_up(tiny(batches(mask=np.ones(4)), loss=takes("label", mask=None)))
    assert present.routing["loss"].fields == ("label", "mask")
    assert present.routing["loss"].required == ("label",)


def test_a_typo_may_not_take_the_default() -> None:
    error = refused("E-HOOK-004", lambda: set_up(tiny(loss=takes("x", lable=None))))
    assert "nearly 'label'" in error.what


def test_train_and_key_are_switches() -> None:
    def forward(self: Any, model: Any, params: Any, state: Any, *, x: Any, train: bool, key: Any):
        return x, state

    route = set_up(tiny(forward=forward)).routing["forward"]
    assert (route.fields, route.train, route.key) == (("x",), True, True)


@pytest.mark.parametrize("name", ["train", "key"])
def test_host_metrics_have_no_switches(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def metrics(self, outputs, *, {name}): return {{}}", scope)
    hook = scope["metrics"]
    assert name in refused("E-HOOK-009", lambda: set_up(tiny(metrics=hook))).what
    device = tiny(metrics=hook, metrics_residency=lambda self, hook: "device")
    assert getattr(set_up(device).routing["metrics"], name)


def test_open_hooks_take_the_rest() -> None:
    def loss(self: Any, outputs: Any, **fields: Any) -> Any: ...
    def metrics(self: Any, outputs: Any, **fields: Any) -> Any: ...

    setup = set_up(tiny(batches(id=list("abcd"), none=None), loss=loss, metrics=metrics))
    assert set(setup.routing["loss"].fields) == {"x", "label"}
    assert set(setup.routing["metrics"].fields) == {"x", "label", "id", "none"}
    assert "id" not in setup.schema["train"].fields


class Prepared(Tiny):
    scale: nt.Device[float] = 0.5
    epochs: int = 1

    def prepare(self, *, image: Any) -> Any:
        return {"x": jnp.float32(image) * self.scale, "image": image}

    def build_data(self) -> dict[str, Any]:
        image = np.zeros((4, 3), np.uint8)
        label = np.zeros(4, np.int32)
        return {"train": [{"image": image, "label": label}]}


def test_later_hooks_are_routed_against_what_prepare_returns() -> None:
    setup = set_up(Prepared())
    assert set(setup.schema["train"].fields) == {"image", "label"}
    assert str(setup.schema["train"].fields["image"]) == "ui8[3]"
    assert setup.routing["forward"].fields == ("x",)
    assert setup.made["x"].dtype == np.float32


def test_what_prepare_makes_is_not_on_the_host() -> None:
    class Host(Prepared):
        def metrics(self, outputs: Any, *, x: Any) -> Any: ...

    assert "prepare makes" in refused("E-HOOK-008", lambda: set_up(Host())).what

    class Replaced(Prepared):
        def metrics(self, outputs: Any, *, image: Any) -> Any: ...

    assert "reads image as loaded" in set_up(Replaced()).report.text()


def test_errors_inside_prepare_are_named() -> None:
    class Reads(Prepared):
        def prepare(self, *, image: Any) -> Any:
            return {"x": image * self.epochs}

    assert "hook prepare" in refused("E-FIELD-001", lambda: set_up(Reads())).what

    class Branches(Prepared):
        def prepare(self, *, image: Any) -> Any:
            return {"x": image} if self.scale > 0 else {}

    assert "scale" in refused("E-FIELD-002", lambda: set_up(Branches())).what


# --- other splits -------------------------------------------------------------------------------


def with_val(val: list[dict[str, Any]], **members: Any) -> Any:
    return tiny(build_data=lambda self: {"train": batches(), "val": val}, **members)


def without(name: str) -> list[dict[str, Any]]:
    return [{n: v for n, v in batch.items() if n != name} for batch in batches()]


@pytest.mark.parametrize("name", ["x", "label"])
def test_a_field_missing_in_val(name: str) -> None:
    error = refused("E-HOOK-003", lambda: set_up(with_val(without(name))))
    assert f"'{name}'" in error.what
    assert "split 'val'" in error.what


def test_val_without_the_fields_of_loss_has_no_val_loss() -> None:
    def metrics(self: Any, outputs: Any, *, x: Any) -> Any: ...

    setup = set_up(with_val(without("label"), metrics=metrics))
    assert set(setup.schema["val"].fields) == {"x"}
    assert "no val_loss" in setup.report.text()


def test_val_of_other_shapes_or_dtypes() -> None:
    wide = [{"x": np.zeros((4, 5), np.float32), "label": np.zeros(4, np.int32)}]
    error = refused("E-DATA-012", lambda: set_up(with_val(wide)))
    assert "f32[5]" in error.what
    assert "f32[3]" in error.what
    other = [{"x": np.zeros((4, 3), np.float16), "label": np.zeros(4, np.int32)}]
    assert "f16[3]" in refused("E-DATA-012", lambda: set_up(with_val(other))).what


def test_val_may_have_another_width_and_a_short_last_batch() -> None:
    schema = set_up(with_val([*batches(1, rows=6), *batches(1, rows=2)])).schema["val"]
    assert (schema.width, schema.last, schema.batches) == (6, 2, 2)
