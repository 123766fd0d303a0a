"""Flax linen: the collection `params` is trained, every other collection is model state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import jax

from nitro_runtime import places
from nitroc.errors import HookError
from nitroc.nn.library import needs, not_a_module
from nitroc.nn.switches import switch_text, switches


@dataclass(frozen=True, repr=False)
class LinenModel:
    """A linen module without arrays; `collections` are those of its state, sorted."""

    module: Any
    collections: tuple[str, ...]

    def apply(
        self,
        params: Mapping[str, Any],
        state: Mapping[str, Any],
        *args: Any,
        train: bool = False,
        key: jax.Array | None = None,
        **keywords: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """`(outputs, new state)` of the module's `__call__(*args, **keywords)`.

        `train` is handed over under the name that `__call__` declares: `train training is_training`
        as it is, `deterministic inference use_running_average` negated. Collections are mutable
        when training, else `state` is returned as given. `key` is the stream `dropout`; one derived
        from it serves every other stream. E-HOOK-077 when a stream is used and `key` is None.
        """
        from flax.errors import InvalidRngError

        variables = {"params": params, **state}
        rngs = None if key is None else {"dropout": key, "params": jax.random.fold_in(key, 1)}
        given = {**switches(self.module.__call__, train), **keywords}
        mutable = list(self.collections) if train and self.collections else False
        try:
            result = self.module.apply(variables, *args, rngs=rngs, mutable=mutable, **given)
        except InvalidRngError as problem:
            if key is not None:
                raise
            raise keyless(self.module) from problem
        if mutable is False:
            return result, state
        outputs, updated = result
        return outputs, {**state, **_plain(updated)}

    def __repr__(self) -> str:
        switch = switch_text(self.module.__call__) or "no train switch"
        state = ", ".join(self.collections) or "none"
        return f"LinenModel({type(self.module).__name__}; {switch}; state: {state})"


def linen(
    module: Any, key: jax.Array, *example: Any, **keywords: Any
) -> tuple[LinenModel, dict[str, Any], dict[str, Any]]:
    """`(model, params, state)` of a `flax.linen.Module`, initialised from `key`.

    `example`, `keywords`: arguments of its `__call__`, of which shapes and dtypes count, batch axis
    included; the train switch is handed over as False. `params` is the collection of that name,
    `state` every other collection (`batch_stats`, `cache`, ...) by name. Metadata boxes (axis
    names) are taken off. E-HOOK-075 without flax, 076 for another object.
    """
    with needs("flax", "linen"):
        from flax import linen as nn

    if not isinstance(module, nn.Module):
        raise not_a_module("linen", "a flax.linen.Module", module)
    given: dict[str, Any] = {**switches(module.__call__, False), **keywords}
    # init runs the module once, for its shapes: its marks count when it is applied
    with places.outside():
        initialised: Any = module.init(key, *example, **given)
    variables = _plain(nn.meta.unbox(initialised))
    params = variables.pop("params", {})
    return LinenModel(module, tuple(sorted(variables))), params, variables


def keyless(module: Any) -> HookError:
    """E-HOOK-077: `module` draws random numbers and was given no key."""
    return HookError(
        77,
        f"{type(module).__name__} draws random numbers, and model.apply was given no key",
        help="declare `key` in forward and call model.apply(..., train=train, key=key)",
    )


def _plain(variables: Any) -> dict[str, Any]:
    from flax.core import unfreeze

    return cast("dict[str, Any]", unfreeze(variables))
