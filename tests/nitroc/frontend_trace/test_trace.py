"""Hooks to functions: values, signatures, keys, dropped fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tracing import constants_of, run, tracer, trees_of

from nitro_dialect.types import TreeType
from nitro_runtime.metrics import Concat, Max
from nitro_runtime.trees import unflatten
from nitroc.errors import HookError
from nitroc.frontend import keys
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.fields import Device, GraphConst
from nitroc.frontend.trace import Tracer

RNG = np.random.default_rng(0)
BATCH = {
    "img": RNG.normal(size=(4, 8)).astype(np.float32),
    "label": np.array([0, 2, 1, 2], np.int32),
    "mask": np.array([1, 0, 1, 1], np.float32),
}


class Mlp(Experiment):
    width: GraphConst[int] = 16
    smoothing: Device[float] = 0.05
    label_offset: Device[int] = 0

    def build_model(self, key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        params = {
            "a": {
                "kernel": jax.random.normal(first, (8, self.width)),
                "bias": jnp.zeros(self.width),
            },
            "b": jax.random.normal(second, (self.width, 3)),
        }
        return None, params, {"mean": jnp.zeros(3)}

    def forward(
        self, model: Any, params: Any, state: Any, *, img: Any, train: bool, key: jax.Array
    ) -> Any:
        h = jax.nn.relu(img @ params["a"]["kernel"] + params["a"]["bias"])
        if train:
            h = jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h / 0.9, 0)
        logits = h @ params["b"]
        mean = 0.9 * state["mean"] + 0.1 * logits.mean(0) if train else state["mean"] + 1
        return {"logits": logits, "pair": (h, None)}, {"mean": mean}

    def loss(self, outputs: Any, *, label: Any, mask: Any) -> Any:
        target = jax.nn.one_hot(label + self.label_offset, 3)
        target = target * (1 - self.smoothing) + self.smoothing / 3
        each = -(target * jax.nn.log_softmax(outputs["logits"])).sum(-1)
        return (each * mask).sum(), mask.sum()

    def train_metrics(self, outputs: Any, *, label: Any) -> Any:
        hit = outputs["logits"].argmax(-1) == label
        return {"accuracy": (hit.sum(), hit.size), "spread": {"logits": outputs["logits"].std()}}


WORDS = {
    "seed": np.array([0, 42], np.uint32),
    "step": np.array([0, 3], np.uint32),
    "micro": np.int32(1),
    "split": np.int32(1),
    "index": np.int32(2),
}


def arguments(traced: Tracer, batch: Mapping[str, Any] = BATCH, **more: Any) -> dict[str, Any]:
    groups = traced.groups
    values: dict[str, Any] = {
        "params": [groups.initial[f"param/{leaf.path}"] for leaf in groups.params.leaves],
        "state": [groups.initial[f"state/{leaf.path}"] for leaf in groups.state.leaves],
    }
    values |= {name: leaf.value for name, leaf in traced.setup.device.items()}
    return values | WORDS | dict(batch) | more


def direct(exp: Any, setup: Any, key: jax.Array) -> Any:
    first, kept = trees_of(setup)

    def objective(params: Any) -> Any:
        out, state = exp.forward(None, params, kept, img=BATCH["img"], train=True, key=key)
        total, weight = exp.loss(out, label=BATCH["label"], mask=BATCH["mask"])
        return total, (weight, exp.train_metrics(out, label=BATCH["label"]), state)

    return jax.value_and_grad(objective, has_aux=True)(first)


def training_key(site: str) -> jax.Array:
    seed, step = jnp.asarray(WORDS["seed"]), jnp.asarray(WORDS["step"])
    return keys.training_key(seed, step, jnp.int32(1), site)


def test_gradient_is_that_of_value_and_grad() -> None:
    exp = Mlp()
    traced = tracer(exp, BATCH)
    plain, gradient = traced.objective()
    (total, (weight, metrics, state)), grads = direct(exp, traced.setup, training_key("forward"))
    hits, count = metrics["accuracy"]
    expected = [total, weight, hits, count, metrics["spread"]["logits"], 1.0]
    found = run(gradient, arguments(traced))
    for value, wanted in zip(found, [*expected, *jax.tree.leaves(grads)], strict=False):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[-1], state["mean"], rtol=1e-5)
    np.testing.assert_allclose(run(plain, arguments(traced))[:6], expected, rtol=1e-5)


def test_signature_of_the_objective() -> None:
    plain, gradient = tracer(Mlp(), BATCH).objective()
    assert [(p.name, str(p.type)) for p in gradient.function.params] == [
        ("params", "tree<default>"),
        ("state", "tree<state>"),
        ("smoothing", "f32 weak"),
        ("label_offset", "i32 weak"),
        ("seed", "seed"),
        ("step", "ui32[2]"),
        ("micro", "i32"),
        ("img", "f32[4,8]"),
        ("label", "i32[4]"),
        ("mask", "f32[4]"),
    ]
    assert plain.function.params == gradient.function.params
    assert [(r.name, str(r.type)) for r in gradient.function.results] == [
        ("loss", "f32"),
        ("weight", "f32"),
        ("metric.accuracy.sum", "f32"),
        ("metric.accuracy.count", "f32"),
        ("metric.spread/logits.sum", "f32"),
        ("metric.spread/logits.count", "f32"),
        ("grad", "tree<default>"),
        ("state", "tree<state>"),
    ]
    assert [r for r in gradient.function.results if r.name != "grad"] == [*plain.function.results]
    assert (gradient.function.of, gradient.function.wrt) == ("objective", "params")
    assert (plain.function.of, plain.function.wrt) == (None, None)


def test_the_weight_gets_no_gradient() -> None:
    class Weighted(Mlp):
        def loss(self, outputs: Any, *, label: Any, mask: Any) -> Any:
            weight = outputs["logits"].sum()
            return 0.0 * weight, weight

    traced = tracer(Weighted(), BATCH)
    del traced.setup.routing["train_metrics"]
    found = run(traced.objective()[1], arguments(traced))
    assert all(not np.any(leaf) for leaf in found[2:5])


def test_forward_drops_fields_no_output_needs() -> None:
    class Prepared(Mlp):
        def prepare(self, *, img: Any, label: Any) -> dict[str, Any]:
            return {"img": img / 2, "label": label % 3}

    traced = tracer(Prepared(), BATCH)
    forward = traced.forward(4)
    assert [p.name for p in forward.function.params][-3:] == ["split", "index", "img"]
    assert forward.outputs is not None
    assert forward.tree_spec is not None
    assert [leaf.path for leaf in forward.outputs.leaves] == ["logits", "pair.#0"]
    assert forward.function.results[0].type == TreeType("outputs.b4")
    found = run(forward, arguments(traced))
    wanted, _ = Mlp().forward(
        None,
        *trees_of(traced.setup),
        img=BATCH["img"] / 2,
        train=False,
        key=jax.random.key(0),
    )
    np.testing.assert_allclose(found[0], wanted["logits"], rtol=1e-5)
    paths = [leaf.path for leaf in forward.outputs.leaves]
    again = unflatten(forward.tree_spec, dict(zip(paths, found, strict=True)))
    assert again["pair"][1] is None


def test_forward_at_another_width() -> None:
    forward = tracer(Mlp(), BATCH).forward(7)
    assert str(forward.function.params[-1].type) == "f32[7,8]"
    assert forward.function.name == "forward.b7"


def test_reduce_cuts_to_its_rows() -> None:
    exp = Mlp()
    traced = tracer(exp, BATCH)
    outputs = run(traced.forward(4), arguments(traced))
    reduced = traced.reduce(4, 3)
    assert reduced is not None
    assert [p.name for p in reduced.function.params] == [
        *("outputs", "smoothing", "label_offset", "seed", "split", "index", "label", "mask")
    ]
    found = run(reduced, arguments(traced, outputs=outputs))
    total, weight = exp.loss(
        {"logits": outputs[0][:3]}, label=BATCH["label"][:3], mask=BATCH["mask"][:3]
    )
    np.testing.assert_allclose(found, [total, weight], rtol=1e-6)


class Scalar(Mlp):
    def loss(self, outputs: Any, *, label: Any) -> Any:
        return (outputs["logits"] ** 2).mean()

    def metrics(self, outputs: Any, *, label: Any) -> Any:
        rows = outputs["logits"].sum(-1)
        return {"all": Concat(rows), "top": Max(rows.max()), "n": (rows.size, None)}

    def metrics_residency(self, hook: str) -> str:
        return "device"


def test_scalar_loss_counts_once_per_row_and_device_metrics_follow() -> None:
    traced = tracer(Scalar(), BATCH)
    outputs = run(traced.forward(4), arguments(traced))
    reduced = traced.reduce(4, 2)
    assert reduced is not None
    assert [(r.name, str(r.type)) for r in reduced.function.results] == [
        ("loss.sum", "f32"),
        ("loss.weight", "f32"),
        ("metric.all.concat", "f32[2]"),
        ("metric.n.sum", "f32"),
        ("metric.top.max", "f32"),
    ]
    loss, weight, rows, n, top = run(reduced, arguments(traced, outputs=outputs))
    np.testing.assert_allclose(loss, 2 * (outputs[0][:2] ** 2).mean(), rtol=1e-6)
    np.testing.assert_allclose(rows, outputs[0][:2].sum(-1), rtol=1e-5)
    assert (weight, n, top) == (2, 2, rows.max())
    objective = run(traced.objective()[0], arguments(traced))
    assert objective[1] == 1


def test_initial_values_are_a_function_of_the_seed() -> None:
    traced = tracer(Mlp(), BATCH)
    init = traced.init()
    assert [str(p.type) for p in (*init.function.params, *init.function.results)] == [
        *("seed", "tree<default>", "tree<state>")
    ]
    seed = np.array([1, 9], np.uint32)
    _, params, _ = Mlp().build_model(jax.random.wrap_key_data(seed, impl="threefry2x32"))
    found = run(init, {"seed": seed})
    for value, wanted in zip(found, jax.tree.leaves(params), strict=False):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-7)


def test_keys_differ_by_seed_step_micro_and_site_in_training_and_outside() -> None:
    seed, step, other = (jnp.array(words, jnp.uint32) for words in ([0, 1], [0, 5], [1, 5]))
    made = [
        keys.training_key(seed, step, jnp.int32(0), "forward"),
        keys.training_key(seed[::-1], step, jnp.int32(0), "forward"),
        keys.training_key(seed, other, jnp.int32(0), "forward"),
        keys.training_key(seed, step, jnp.int32(1), "forward"),
        keys.training_key(seed, step, jnp.int32(0), "prepare"),
        keys.evaluation_key(seed, jnp.int32(0), jnp.int32(5), "forward"),
        keys.evaluation_key(seed, jnp.int32(1), jnp.int32(5), "forward"),
        keys.evaluation_key(seed, jnp.int32(0), jnp.int32(6), "forward"),
    ]
    assert len({tuple(np.asarray(jax.random.key_data(key))) for key in made}) == len(made)


def test_weak_device_scalar_keeps_bf16() -> None:
    class Narrow(Experiment):
        scale: Device[float] = 2.0

        def build_model(self, key: Any) -> Any:
            return None, {"w": jnp.ones((8, 3), jnp.bfloat16)}, ()

        def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
            return img.astype(jnp.bfloat16) @ params["w"] * self.scale, state

        def loss(self, outputs: Any) -> Any:
            return outputs.astype(jnp.float32).sum()

    traced = tracer(Narrow(), BATCH)
    forward = traced.forward(4)
    assert forward.outputs is not None
    assert [(leaf.path, leaf.dtype) for leaf in forward.outputs.leaves] == [("@", "bf16")]
    gradient = run(traced.objective()[1], arguments(traced))[2]
    assert gradient.dtype == jnp.bfloat16


def test_nested_device_values_are_leaves_of_their_field() -> None:
    class Proto(Experiment):
        protos: Device[Any] = None

        def build_model(self, key: Any) -> Any:
            return None, {"w": jnp.ones((8, 3))}, ()

        def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
            table, scale = self.protos[0]
            return img @ params["w"] @ table.T * scale, state

        def loss(self, outputs: Any) -> Any:
            return outputs.sum()

    traced = tracer(Proto(protos=((np.ones((2, 3), np.float32), 4.0),)), BATCH)
    forward = traced.forward(4)
    assert [(p.name, str(p.type)) for p in forward.function.params[2:4]] == [
        ("protos.#0.#0", "f32[2,3]"),
        ("protos.#0.#1", "f32"),
    ]
    np.testing.assert_allclose(
        run(forward, arguments(traced))[0], BATCH["img"] @ np.ones((8, 2)) * 3 * 4, rtol=1e-5
    )


def test_named_tuple_outputs_and_typed_key_state() -> None:
    class Out(NamedTuple):
        logits: Any
        extra: Any

    class Keyed(Experiment):
        def build_model(self, key: Any) -> Any:
            return None, {"w": jnp.ones((8, 3))}, {"rng": jax.random.key(3)}

        def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
            rng, use = jax.random.split(state["rng"])
            logits = img @ params["w"] + jax.random.normal(use, (3,))
            return Out(logits, [img]), {"rng": rng}

        def loss(self, outputs: Any) -> Any:
            return outputs.logits.sum()

    traced = tracer(Keyed(), BATCH)
    forward = traced.forward(4)
    assert forward.outputs is not None
    assert [leaf.path for leaf in forward.outputs.leaves] == ["@logits", "@extra.#0"]
    state = run(traced.objective()[1], arguments(traced))[-1]
    wanted = jax.random.key_data(jax.random.split(jax.random.key(3))[0])
    np.testing.assert_array_equal(state, wanted)
    reduced = traced.reduce(4, 4)
    assert reduced is not None
    outputs = run(forward, arguments(traced))
    np.testing.assert_allclose(
        run(reduced, arguments(traced, outputs=outputs))[0], outputs[0].sum() * 4, rtol=1e-5
    )


def test_B05_plain_global_helper_checkpoint_and_scan_body_are_traced_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for exp in (Plain(), Helper(), Checkpointed(), Scanned()):
        batch = {"img": BATCH["img"]}
        monkeypatch.setitem(GLOBAL, "scale", 1.0)
        one = tracer(exp, batch)
        before = run(one.forward(4), arguments(one))[0]
        monkeypatch.setitem(GLOBAL, "scale", 3.0)
        two = tracer(exp, batch)
        after = run(two.forward(4), arguments(two))[0]
        np.testing.assert_allclose(after, 3 * before, rtol=1e-5, err_msg=type(exp).__name__)


GLOBAL = {"scale": 1.0}


class Plain(Experiment):
    def build_model(self, key: Any) -> Any:
        return None, {"w": jnp.ones((8, 3))}, ()

    def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
        return img @ params["w"] * GLOBAL["scale"], state

    def loss(self, outputs: Any) -> Any:
        return outputs.sum()


@jax.jit
def scaled(x: Any) -> Any:
    return x * GLOBAL["scale"]


class Helper(Plain):
    def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
        return scaled(img @ params["w"]), state


@jax.checkpoint
def checkpointed(x: Any) -> Any:
    return x * GLOBAL["scale"]


class Checkpointed(Plain):
    def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
        return checkpointed(img @ params["w"]), state


def body(carry: Any, x: Any) -> Any:
    return carry + x * GLOBAL["scale"], None


class Scanned(Plain):
    def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
        h = img @ params["w"]
        return jax.lax.scan(body, jnp.zeros_like(h), h[None])[0], state


def test_captured_array_is_one_constant_of_objective_and_gradient() -> None:
    table = RNG.normal(size=(8, 300)).astype(np.float32)

    @jax.jit
    def project(x: Any) -> Any:
        return x @ table

    class Captured(Plain):
        def build_model(self, key: Any) -> Any:
            return None, {"w": jnp.ones((300, 3))}, ()

        def forward(self, model: Any, params: Any, state: Any, *, img: Any) -> Any:
            return (project(img) + jnp.tanh(img) @ table) @ params["w"], state

    traced = tracer(Captured(), {"img": BATCH["img"]})
    plain, gradient = traced.objective()
    names = [p.name for p in gradient.function.params]
    assert [p.name for p in plain.function.params] == names
    assert names[:2] == ["params", "state"]
    assert names[2].startswith("const.c")
    assert names[3] == "seed"
    (constant,) = gradient.constants.values()
    np.testing.assert_array_equal(constant, table)
    assert any("(9600 bytes)" in note and "test_trace.py:" in note for note in plain.notes)
    found = run(gradient, arguments(traced) | constants_of(gradient))
    wanted = jax.grad(lambda w: ((BATCH["img"] @ table + np.tanh(BATCH["img"]) @ table) @ w).sum())(
        jnp.ones((300, 3))
    )
    np.testing.assert_allclose(found[2], wanted, rtol=1e-4, atol=1e-4)


def test_field_that_prepare_leaves_out_in_training_is_refused() -> None:
    class Sometimes(Plain):
        def prepare(self, *, img: Any, train: bool) -> dict[str, Any]:
            return {} if train else {"half": img / 2}

        def forward(self, model: Any, params: Any, state: Any, *, half: Any) -> Any:
            return half @ params["w"], state

    traced = tracer(Sometimes(), BATCH)
    assert [p.name for p in traced.forward(4).function.params][-1] == "img"
    with pytest.raises(HookError, match=r"E-HOOK-072: `forward` asks for the field 'half'"):
        traced.objective()


def test_reduce_of_a_split_without_the_fields_of_loss() -> None:
    assert tracer(Mlp(), BATCH).reduce(4, 4, fields={"img"}) is None
    reduced = tracer(Scalar(), BATCH).reduce(4, 4, fields={"img"})
    assert reduced is not None
    assert reduced.function.results[0].name == "metric.all.concat"


def test_tracing_again_gives_the_same_bytes() -> None:
    def made() -> list[bytes]:
        traced = tracer(Mlp(), BATCH)
        reduced = traced.reduce(4, 3)
        assert reduced is not None
        found = (*traced.objective(), traced.forward(4), reduced, traced.init())
        return [f.serialized for f in found]

    assert made() == made()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_platforms_are_traced_without_one(platform: str) -> None:
    plain, gradient = tracer(Mlp(), BATCH, platform=platform).objective()
    assert plain.function.params == gradient.function.params
    assert gradient.serialized
