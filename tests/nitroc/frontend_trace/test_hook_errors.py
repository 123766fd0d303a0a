"""What is said when a hook raises, or returns what it may not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tracing import tracer

from nitro_runtime.errors import NitroError
from nitro_runtime.metrics import Max
from nitroc.errors import BuildError, ContractError, FieldError, HookError
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.fields import Device, GraphConst, Host

BATCH = {"img": np.zeros((4, 8), np.float32), "label": np.zeros(4, np.int32)}


class Base(Experiment):
    scale: Device[float] = 1.0
    count: Device[int] = 2
    depth: GraphConst[int] = 2
    name: Host[str] = "run"

    def build_model(self, key: Any) -> Any:
        return None, {"w": jnp.ones((8, 3))}, {"n": jnp.zeros(3)}

    def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
        return img @ params["w"], state

    def loss(self, outputs: Any, *, label: Any) -> Any:
        return outputs.sum()


def raised(experiment: Experiment, kind: type[NitroError], batch: Any = None) -> NitroError:
    with pytest.raises(kind) as found:
        tracer(experiment, batch or BATCH).objective()
    return found.value


def line_of(function: Any, offset: int = 1) -> str:
    return f"test_hook_errors.py:{function.__code__.co_firstlineno + offset}"


def test_B08_shape_error_names_phase_hook_line_and_shapes() -> None:
    class Wrong(Base):
        def loss(self, outputs: Any, *, label: Any) -> Any:
            wide = jnp.zeros((5, 3))
            return helper(outputs, wide)

    error = raised(Wrong(), HookError)
    text = str(error)
    assert error.code == "E-HOOK-060"
    assert "while tracing the training program, `loss` raised TypeError" in error.what
    assert error.where == line_of(helper)
    assert "argument 0: f32[4,3]" in text
    assert "field label: i32[4]" in text
    assert len(text.splitlines()) <= 40
    full = Path(re.search(r"full text: (\S+)", text)[1])  # type: ignore[index]
    assert "Traceback" in full.read_text()
    assert "incompatible shapes" in full.read_text()
    full.unlink()


def helper(x: Any, y: Any) -> Any:
    return x + y


def test_B08_a_long_message_is_cut_and_kept_whole_in_the_file() -> None:
    class Long(Base):
        def loss(self, outputs: Any, *, label: Any) -> Any:
            raise ValueError("\n".join(f"line {i}" for i in range(200)))

    text = str(raised(Long(), HookError))
    assert len(text.splitlines()) <= 40
    full = Path(re.search(r"full text: (\S+)", text)[1])  # type: ignore[index]
    assert "line 199" in full.read_text()
    full.unlink()


class InIf(Base):
    def loss(self, outputs: Any, *, label: Any) -> Any:
        return outputs.sum() if self.scale * 2 > 1 else outputs.mean()


class InRange(Base):
    def loss(self, outputs: Any, *, label: Any) -> Any:
        return sum(outputs.sum() for _ in range(self.count))


class InShape(Base):
    def loss(self, outputs: Any, *, label: Any) -> Any:
        return outputs.sum() + jnp.zeros((self.count,)).sum()


class InIndex(Base):
    def loss(self, outputs: Any, *, label: Any) -> Any:
        return outputs.sum() * (1.0, 2.0, 3.0)[self.count]


class InReshape(Base):
    def loss(self, outputs: Any, *, label: Any) -> Any:
        return outputs.reshape(self.count, -1).sum()


class InFloat(Base):
    def loss(self, outputs: Any, *, label: Any) -> Any:
        return outputs.sum() * float(self.scale)


class InNumpy(Base):
    def loss(self, outputs: Any, *, label: Any) -> Any:
        return outputs.sum() * np.sqrt(np.asarray(self.scale))


@pytest.mark.parametrize("cls", [InIf, InRange, InShape, InIndex, InReshape, InFloat, InNumpy])
def test_B06_device_field_as_a_python_value(cls: type[Base]) -> None:
    error = raised(cls(), FieldError)
    field = "scale" if cls in (InIf, InFloat, InNumpy) else "count"
    assert error.code == "E-FIELD-002"
    assert f"Device field `{field}`" in error.what
    assert "`loss`" in error.what
    assert error.where == line_of(cls.loss)
    assert "nt.GraphConst[" in str(error.help)


def test_B06_host_field_passes_its_own_error_through() -> None:
    class Reads(Base):
        def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
            return img @ params["w"] * len(self.name), state

    error = raised(Reads(), FieldError)
    assert error.code == "E-FIELD-001"
    assert "name" in error.what

    class Returns(Base):
        def train_metrics(self, outputs: Any) -> Any:
            return {"x": self.name}

    assert raised(Returns(), FieldError).code == "E-FIELD-001"


def test_a_batch_value_in_if_names_the_line_and_the_fix() -> None:
    class Branches(Base):
        def loss(self, outputs: Any, *, label: Any) -> Any:
            if label[0] > 0:
                return outputs.sum()
            return outputs.mean()

    error = raised(Branches(), ContractError)
    assert error.code == "E-CONTRACT-003"
    assert error.where == line_of(Branches.loss)
    assert "jnp.where" in str(error.help)


def test_a_leaked_tracer_is_explained() -> None:
    kept: list[Any] = []

    class Leaks(Base):
        def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
            kept.append(img.sum())
            return img @ params["w"] + kept[0], state

    error = raised(Leaks(), ContractError)
    assert error.code == "E-CONTRACT-004"
    assert error.where == line_of(Leaks.forward, 2)


def outputs_of(value: Any) -> type[Base]:
    class Returns(Base):
        def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
            return value(img, params["w"], state)

    return Returns


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda x, w, s: ((x @ w).sum(), s), "the output of `forward` is f32, expected the batch"),
        (lambda x, w, s: ({"a": (x @ w).T}, s), r"output a of `forward` is f32\[3,4\]"),
        (lambda x, w, s: ([x, 1.0], s), r"output #1 of `forward` is f32, .*\[4,\.\.\.\]"),
        (lambda x, w, s: ({"a": jnp.tanh}, s), "output a of `forward` is .*, expected an array"),
        (lambda x, w, s: (None, s), "no outputs"),
        (lambda x, w, s: x @ w, r"returned f32\[4,3\], expected \(outputs, new_state\)"),
    ],
)
def test_outputs_that_forward_may_not_return(value: Any, said: str) -> None:
    cls = outputs_of(value)
    error = raised(cls(), HookError)
    assert error.code == "E-HOOK-061"
    assert re.search(said, error.what)
    assert error.where == line_of(cls.forward, 0)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda x, w, s: (x, {}), r"another state than build_model: \[\], expected \['n'\]"),
        (lambda x, w, s: (x, {"n": s["n"][:2]}), r"state n as f32\[2\], expected f32\[3\]"),
        (lambda x, w, s: (x, {"n": s["n"].astype(int)}), r"state n as i32\[3\]"),
    ],
)
def test_states_that_forward_may_not_return(value: Any, said: str) -> None:
    error = raised(outputs_of(value)(), HookError)
    assert error.code == "E-HOOK-062"
    assert re.search(said, error.what)


@pytest.mark.parametrize(
    "value",
    [
        lambda y: y,
        lambda y: None,
        lambda y: (y.sum(), y),
        lambda y: (y.sum(), 1, 2),
        lambda y: y.sum().astype(int),
        lambda y: y.sum() * 1j,
        lambda y: "loss",
    ],
)
def test_losses_that_are_refused(value: Any) -> None:
    class Returns(Base):
        def loss(self, outputs: Any, *, label: Any) -> Any:
            return value(outputs)

    error = raised(Returns(), HookError)
    assert error.code == "E-HOOK-063"
    assert error.where == line_of(Returns.loss, 0)


@pytest.mark.parametrize(
    ("metrics", "code"),
    [
        ({"a": np.zeros(3)}, "E-HOOK-064"),
        ({"a": (1.0, None)}, "E-HOOK-064"),
        ({"a": Max(1.0)}, "E-HOOK-064"),
        ([1.0], "E-HOOK-064"),
        ({"a b": 1.0}, "E-HOOK-064"),
        ({"loss": 1.0}, "E-HOOK-065"),
        ({"a/b": 1.0, "a": {"b": 2.0}}, "E-HOOK-065"),
    ],
)
def test_train_metrics_that_are_refused(metrics: Any, code: str) -> None:
    class Returns(Base):
        def train_metrics(self, outputs: Any) -> Any:
            return metrics

    assert raised(Returns(), HookError).code == code


def test_prepare_that_returns_no_dict() -> None:
    class Returns(Base):
        def prepare(self, *, img: Any) -> Any:
            return img

    assert raised(Returns(), HookError).code == "E-HOOK-066"


def test_labels_of_the_wrong_shape() -> None:
    class Picks(Base):
        def loss(self, outputs: Any, *, label: Any) -> Any:
            return jnp.take_along_axis(outputs, label[:, None], axis=1).mean()

    error = raised(Picks(), HookError, BATCH | {"label": np.zeros((4, 1), np.int32)})
    assert error.code == "E-HOOK-060"
    assert "field label: i32[4,1]" in str(error)


def test_debug_print_in_a_hook() -> None:
    class Prints(Base):
        def loss(self, outputs: Any, *, label: Any) -> Any:
            jax.debug.print("{}", outputs.sum())
            return outputs.sum()

    error = raised(Prints(), ContractError)
    assert error.code == "E-CONTRACT-001"
    assert error.where == line_of(Prints.loss)


def test_train_metrics_on_the_host_is_refused_by_name() -> None:
    class OnHost(Base):
        def train_metrics(self, outputs: Any) -> Any:
            return {}

        def metrics_residency(self, hook: str) -> str:
            return "host"

    assert raised(OnHost(), BuildError).code == "E-BUILD-042"


class Unsigned(Base):
    def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
        shifted = img - 128
        return shifted.astype(jnp.float32) @ params["w"], state


class Cast(Base):
    def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
        return ((img.astype(jnp.float32) - 128) / 64) @ params["w"], state


class InHelper(Base):
    def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
        doubled = jax.jit(lambda x: x.reshape(-1, 8) * 2)(img)
        return doubled.astype(jnp.float32) @ params["w"], state


@pytest.mark.parametrize(("cls", "operation"), [(Unsigned, "sub"), (InHelper, "mul")])
def test_E04_unsigned_arithmetic_is_reported_once_with_its_line(
    cls: type[Base], operation: str
) -> None:
    batch = {"img": np.full((4, 8), 250, np.uint8), "label": BATCH["label"]}
    traced = tracer(cls(), batch)
    plain, gradient = traced.objective()
    notes = [*plain.notes, *gradient.notes, *traced.forward(4).notes]
    assert [note for note in notes if "unsigned" in note] == [
        f"{operation} on the unsigned field img (uint8) wraps at {line_of(cls.forward)}: "
        "cast it first, e.g. `.astype(jnp.float32)`"
    ]


def test_E04_a_cast_field_is_not_reported() -> None:
    batch = {"img": np.full((4, 8), 250, np.uint8), "label": BATCH["label"]}
    plain, gradient = tracer(Cast(), batch).objective()
    assert not [note for note in (*plain.notes, *gradient.notes) if "unsigned" in note]
