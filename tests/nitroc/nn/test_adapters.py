"""What each adapter makes of a module, what it hands over, and what it refuses."""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from declared import refused
from flax import linen
from flax import nnx as flax_nnx
from networks import LIBRARIES, Network, NnxNet, made
from tracing import setup_of, tracer
from whole import INPUTS, rows

import nitroc as nt
from nitro_runtime import places
from nitroc.frontend.groups import Groups, make_groups
from nitroc.frontend.importer import ImportedFunction
from nitroc.nn.switches import switches

KEY = jax.random.key(3, impl="threefry2x32")
X = jnp.asarray(rows(6)["x"])


def grouped(made: tuple[Any, Any, Any]) -> Groups:
    _, params, state = made
    return make_groups(params, state, None, "exp.py:1")


@pytest.mark.parametrize(
    ("library", "package"), [("linen", "flax"), ("nnx", "flax"), ("equinox", "equinox")]
)
def test_a_missing_library_is_named_with_its_extra(
    library: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    given = (None, KEY) if library == "linen" else (None,)
    error = refused("E-HOOK-075", lambda: getattr(nt.nn, library)(*given))
    assert f"pip install 'nitroc[{package}]'" in str(error)


def test_another_object_is_refused() -> None:
    dense = linen.Dense(3)
    assert "class Dense" in str(refused("E-HOOK-076", lambda: nt.nn.linen(linen.Dense, KEY, X)))
    assert "nnx.Module" in str(refused("E-HOOK-076", lambda: nt.nn.nnx(dense)))
    assert "equinox.Module" in str(refused("E-HOOK-076", lambda: nt.nn.equinox(dense)))


class Watched(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return nt.assert_finite("hidden", linen.Dense(3)(x))


def test_a_linen_module_with_a_mark_is_initialised_where_marks_are_refused() -> None:
    with places.running(places.Place("build_model", places.Kind.REFUSED)) as place:
        model, params, state = nt.nn.linen(Watched(), KEY, X)
        refused("E-CONTRACT-019", lambda: model.apply(params, state, X))
    assert place.dropped == []


EXPECTED = {
    "linen": (
        "BatchNorm_0.bias BatchNorm_0.scale Dense_0.kernel Dense_1.bias Dense_1.kernel",
        "batch_stats.BatchNorm_0.mean batch_stats.BatchNorm_0.var",
        "LinenModel(LinenNet; train=train; state: batch_stats)",
    ),
    "nnx": (
        "first.kernel last.bias last.kernel norm.bias norm.scale",
        "norm.mean norm.var",
        "NnxModel(NnxNet; .train() and .eval(); state: mean, var)",
    ),
    "equinox": (
        "layers.#k0.weight layers.#k2.bias layers.#k2.weight norm.bias norm.weight",
        "norm.ema_first_time_index norm.ema_state_index.#k0 norm.ema_state_index.#k1",
        "EquinoxModel(EquinoxNet; mapped over 'batch'; inference flags; state: "
        "norm.ema_first_time_index, norm.ema_state_index.0, norm.ema_state_index.1)",
    ),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_params_and_state_are_nested_dicts_and_the_model_holds_no_array(library: str) -> None:
    model, params, state = made(library, 0.5, KEY)
    groups = grouped((model, params, state))
    params_paths, state_paths, shown = EXPECTED[library]
    assert [leaf.path for leaf in groups.params.leaves] == params_paths.split()
    assert [leaf.path for leaf in groups.state.leaves] == state_paths.split()
    assert repr(model) == shown
    assert not arrays_of(model)


def arrays_of(root: Any) -> list[Any]:
    """Arrays reached from an object, not through classes, functions and Python modules."""
    code = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
    seen, todo, found = {id(root)}, [root], []
    while todo:
        for item in gc.get_referents(todo.pop()):
            if id(item) in seen or isinstance(item, code):
                continue
            seen.add(id(item))
            todo.append(item)
            if isinstance(item, jax.Array | np.ndarray):
                found.append(item)
    return found


@pytest.mark.parametrize("library", LIBRARIES)
def test_training_updates_state_and_evaluation_returns_it(library: str) -> None:
    model, params, state = made(library, 0.5, KEY)
    outputs, after = model.apply(params, state, X, train=True, key=KEY)
    assert outputs.shape == (6, 1)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    changed = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (state, after)), strict=True)]
    assert all(changed)
    evaluated, kept = model.apply(params, after, X)
    assert kept is after
    one, _ = model.apply(params, after, X[:1], key=KEY)
    np.testing.assert_allclose(evaluated[:1], one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_dropped_follows_the_key(library: str) -> None:
    model, params, state = made(library, 0.5, KEY)
    apply = jax.jit(lambda key: model.apply(params, state, X, train=True, key=key)[0])
    first = apply(KEY)
    assert np.array_equal(first, apply(KEY))
    assert not np.array_equal(first, apply(jax.random.fold_in(KEY, 1)))


@pytest.mark.parametrize("library", ["linen", "nnx"])
def test_a_stream_without_a_key_is_refused(library: str) -> None:
    model, params, state = made(library, 0.5, KEY)
    error = refused("E-HOOK-077", lambda: model.apply(params, state, X, train=True))
    assert "key=key" in str(error)


class Noise(linen.Module):
    @linen.compact
    def __call__(self, x: Any, deterministic: bool) -> Any:
        if deterministic:
            return x
        streams = [self.make_rng(name) for name in ("dropout", "noise")]
        return jnp.stack([jax.random.normal(key, x.shape) for key in streams])


class TwoDropouts(flax_nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.both = flax_nnx.List([flax_nnx.Dropout(0.5, rngs=rngs) for _ in range(2)])

    def __call__(self, x: Any, rngs: Any = None) -> Any:
        own = jnp.ones(x.shape) if rngs is None else jax.random.normal(rngs.noise(), x.shape)
        return jnp.stack([*(dropout(jnp.ones(x.shape)) for dropout in self.both), own])


@pytest.mark.parametrize(
    "made", [lambda: nt.nn.linen(Noise(), KEY, X), lambda: nt.nn.nnx(TwoDropouts(flax_nnx.Rngs(0)))]
)
def test_every_stream_has_numbers_of_its_own(made: Any) -> None:
    model, params, state = made()
    drawn, _ = model.apply(params, state, X, train=True, key=KEY)
    assert len({np.asarray(part).tobytes() for part in drawn}) == len(drawn)
    again, _ = model.apply(params, state, X, train=True, key=jax.random.fold_in(KEY, 1))
    assert not any(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))


def test_a_switch_is_handed_over_under_the_name_declared() -> None:
    assert switches(lambda x, train: x, True) == {"train": True}
    assert switches(lambda x, *, training=False: x, False) == {"training": False}
    assert switches(lambda x, *, is_training: x, True) == {"is_training": True}
    assert switches(lambda x, deterministic: x, True) == {"deterministic": False}
    both = switches(lambda x, inference, use_running_average: x, False)
    assert both == {"inference": True, "use_running_average": True}
    assert switches(lambda x, /, *train, **training: x, True) == {}


def test_metadata_boxes_are_taken_off_and_keywords_reach_the_module() -> None:
    class Boxed(linen.Module):
        @linen.compact
        def __call__(self, x: Any, *, scale: float) -> Any:
            start = linen.with_partitioning(linen.initializers.ones, ("rows", None))
            return x @ self.param("w", start, (INPUTS, 2)) * scale

    model, params, state = nt.nn.linen(Boxed(), KEY, X, scale=1.0)
    assert type(params["w"]) is type(X)
    outputs, _ = model.apply(params, state, X, scale=2.0)
    np.testing.assert_allclose(outputs[:, 0], 2 * X.sum(1), rtol=1e-5)


class Odd(eqx.Module):
    """A tied array, an integer table, a typed key, a function, a static field."""

    one: Any
    other: Any
    table: Any
    key: Any
    function: Any
    name: str = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        noise = jax.random.uniform(self.key)
        return self.function(x * self.one * self.other)[self.table] + 0 * noise


def odd(**changes: Any) -> Odd:
    array = jnp.ones(INPUTS)
    parts = {"one": array, "other": array, "table": np.arange(2), "key": KEY, "function": jnp.sin}
    return Odd(**{**parts, "name": "odd", **changes})


def test_equinox_what_is_no_floating_array_is_state_or_stays_on_the_model() -> None:
    made = nt.nn.equinox(odd())
    groups = grouped(made)
    assert [leaf.path for leaf in groups.params.leaves] == ["one", "other"]
    assert [(leaf.path, leaf.dtype) for leaf in groups.state.leaves] == [
        ("key", "ui32"),
        ("table", "i32"),
    ]
    assert groups.keys == ("threefry2x32", None)
    assert "params other and one are one array: they become two parameters" in groups.notes
    model, params, state = made
    outputs, after = model.apply(params, state, X, train=True)
    np.testing.assert_allclose(outputs, jnp.sin(X)[:, :2], rtol=1e-6)
    assert after is state
    assert "complex64" in str(
        refused("E-HOOK-067", lambda: grouped(nt.nn.equinox(odd(one=1j * X))))
    )


class Kept(linen.Module):
    """A parameter of dtype `dtype`, and whatever `kept` is as a variable."""

    dtype: Any
    kept: Any

    @linen.compact
    def __call__(self, x: Any) -> Any:
        self.variable("kept", "value", lambda: self.kept)
        return x * self.param("w", lambda key: jnp.ones(INPUTS, self.dtype))


class NnxKept(flax_nnx.Module):
    def __init__(self, dtype: Any, kept: Any) -> None:
        self.w = flax_nnx.Param(jnp.ones(INPUTS, dtype))
        self.w_again = self.w
        self.value = flax_nnx.Variable(kept)

    def __call__(self, x: Any) -> Any:
        return x * self.w


KEPT = {
    "linen": lambda dtype, kept: nt.nn.linen(Kept(dtype, kept), KEY, X),
    "nnx": lambda dtype, kept: nt.nn.nnx(NnxKept(dtype, kept)),
}


@pytest.mark.parametrize("library", KEPT)
def test_leaves_that_are_no_trainable_arrays_are_explained(library: str) -> None:
    made = KEPT[library]
    groups = grouped(made(jnp.float32, KEY))
    assert groups.keys == ("threefry2x32",), "a typed key goes on as its words"
    assert [leaf.path for leaf in groups.params.leaves] == ["w"]
    assert "state" in str(refused("E-HOOK-067", lambda: grouped(made(jnp.int32, X))))
    error = refused("E-HOOK-069", lambda: grouped(made(jnp.float32, "text")))
    assert "value is str" in str(error)
    assert "model" in str(error)


def test_equinox_state_that_is_missing_or_not_returned() -> None:
    module, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(INPUTS, "batch", mode="ema")
    assert "make_with_state" in str(refused("E-HOOK-080", lambda: nt.nn.equinox(module)))
    other = eqx.nn.State(eqx.nn.Linear(2, 2, key=KEY))
    assert "lacks" in str(refused("E-HOOK-080", lambda: nt.nn.equinox(module, other)))
    model, params, kept = nt.nn.equinox(module, state)
    assert model.apply(params, kept, X, train=True)[0].shape == X.shape

    class Silent(eqx.Module):
        norm: Any

        def __call__(self, x: Any, state: Any) -> Any:
            return self.norm(x, state)[0]

    model, params, kept = nt.nn.equinox(Silent(module), state)
    assert "Silent" in str(refused("E-HOOK-079", lambda: model.apply(params, kept, X, train=True)))


def test_equinox_takes_whole_batches_when_told() -> None:
    class Whole(eqx.Module):
        scale: Any

        def __call__(self, x: Any, *, key: Any, train: bool) -> Any:
            return x.sum(0) * self.scale + (jax.random.uniform(key) if train else 0)

    model, params, state = nt.nn.equinox(Whole(jnp.ones(INPUTS)), axis_name=None)
    outputs, _ = model.apply(params, state, X)
    np.testing.assert_allclose(outputs, X.sum(0), rtol=1e-6)
    drawn, _ = model.apply(params, state, X, train=True, key=KEY)
    assert not np.array_equal(outputs, drawn)
    assert (
        repr(model)
        == "EquinoxModel(Whole; whole batches; inference flags, train=train; state: none)"
    )


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_other_params_than_the_models_are_named(library: str) -> None:
    model, params, state = made(library, 0.0, KEY)
    error = refused("E-HOOK-078", lambda: model.apply(state, params, X))
    assert "params given to model.apply have no leaf" in str(error)


class Keeper:
    """Outlives a trace."""

    value: Any = None

    def __call__(self, x: Any) -> Any:
        before, self.value = self.value, x
        return x if before is None else x + before


class LinenKeeps(linen.Module):
    keeper: Any

    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(1)(self.keeper(x) if not self.is_initializing() else x)


class NnxKeeps(flax_nnx.Module):
    def __init__(self, keeper: Any, rngs: Any) -> None:
        self.keeper, self.last = keeper, flax_nnx.Linear(INPUTS, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.last(self.keeper(x))


class EquinoxKeeps(eqx.Module):
    keeper: Any
    last: Any

    def __call__(self, x: Any) -> Any:
        return jax.vmap(self.last)(self.keeper(x))


class Keeping(Network):
    def build_model(self, key: Any) -> Any:
        match self.library:
            case "linen":
                return nt.nn.linen(LinenKeeps(Keeper()), key, X)
            case "nnx":
                return nt.nn.nnx(NnxKeeps(Keeper(), flax_nnx.Rngs(key)))
            case _:
                last = eqx.nn.Linear(INPUTS, 1, key=key)
                return nt.nn.equinox(EquinoxKeeps(Keeper(), last), axis_name=None)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_module_that_keeps_a_traced_value_is_explained(library: str) -> None:
    traced = tracer(Keeping(library=library), rows(4))
    error = refused("E-CONTRACT-004", traced.objective)
    assert "test_adapters.py" in str(error)
    assert "model" in str(error)


class Bare(Network):
    def build_model(self, key: Any) -> Any:
        return NnxNet(0.0, flax_nnx.Rngs(key)), {"w": jnp.ones(INPUTS)}, {}

    def forward(  # type: ignore[override]
        self, model: Any, params: Any, state: Any, *, x: Any
    ) -> Any:
        return model(x * params["w"])[:, 0], state


def test_a_bare_module_that_would_keep_one_is_pointed_at_its_adapter() -> None:
    error = refused("E-CONTRACT-004", tracer(Bare(), rows(4)).objective)
    assert "BatchStat" in str(error)
    assert "nt.nn.nnx(module)" in str(error)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_report_says_how_the_module_is_told_that_it_trains(library: str) -> None:
    report = setup_of(Network(library=library), rows(4)).report
    (line,) = [line for line in report.lines if (line.section, line.name) == ("groups", "model")]
    assert line.value == EXPECTED[library][2]


class Traced(Network):
    @nt.traced
    def build_model(self, key: Any) -> Any:
        return made(self.library, 0.0, key)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_traced_build_model_becomes_the_program_init(library: str) -> None:
    found: ImportedFunction = tracer(Traced(library=library), rows(4)).init()
    assert [result.name for result in found.function.results] == ["params", "state"]
