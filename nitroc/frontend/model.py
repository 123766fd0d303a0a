"""`build_model` on the host, and the hooks that are asked once per parameter."""

from __future__ import annotations

from typing import Any, cast

import jax.tree_util as jtu
import numpy as np

from nitroc.errors import HookError
from nitroc.frontend.device import DeviceValues
from nitroc.frontend.experiment import Experiment
from nitroc.frontend.groups import NoDecay, plain_path
from nitroc.frontend.hooks import call_hook, has_hook, hook_location, is_traced, not_run
from nitroc.frontend.keys import seed_key
from nitroc.frontend.metadata import short_value
from nitroc.frontend.optimizer import GROUP
from nitroc.frontend.view import compile_view, refuse_returned


def build_model(experiment: Experiment, values: DeviceValues, seed: int) -> tuple[Any, Any, Any]:
    """`(model, params, state)` from the seed's key; E-HOOK-006 for anything but a triple.

    A hook marked `traced` is called on the compile view, with the Device values as they are.
    """
    hook = "build_model"
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    on = compile_view(experiment, values.host, hook) if is_traced(experiment, hook) else experiment
    result = call_hook(on, hook, seed_key(words))  # pyright: ignore[reportArgumentType]
    where = hook_location(experiment, hook)
    refuse_returned(result, hook, where)
    if isinstance(result, tuple) and len(cast("tuple[Any, ...]", result)) == 3:
        return cast("tuple[Any, Any, Any]", result)
    raise HookError(
        6,
        f"build_model returned {_found(result)}, expected (model, params, state)",
        where=where,
        help="end with `return model, params, state`; state may be {}",
    )


def _found(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {len(cast('tuple[Any, ...]', result))}"
    return f"a {type(result).__name__}"


def leaf_hooks(experiment: Experiment, params: Any) -> NoDecay | None:
    """Asks `param_group` about every leaf, and returns `no_decay`, checked, when it is there.

    E-HOOK-005 for a group this version does not run, -006 for a result of another type.
    """
    if has_hook(experiment, "param_group"):
        for path, leaf in jtu.tree_flatten_with_path(params)[0]:
            _check_group(experiment, plain_path(path), leaf)
    return _checked_no_decay(experiment) if has_hook(experiment, "no_decay") else None


def _check_group(experiment: Experiment, path: tuple[str | int, ...], leaf: Any) -> None:
    name = call_hook(experiment, "param_group", path, leaf)
    if name != GROUP:
        raise not_run(
            f"param_group putting {path} into {short_value(name)}",
            hook_location(experiment, "param_group"),
            f"return {GROUP!r} for every leaf",
        )


def _checked_no_decay(experiment: Experiment) -> NoDecay:
    def no_decay(path: tuple[str | int, ...], leaf: Any) -> bool:
        result = call_hook(experiment, "no_decay", path, leaf)
        if isinstance(result, bool | np.bool_):
            return bool(result)
        raise HookError(
            6,
            f"no_decay returned {short_value(result)} for {path}, expected True or False",
            where=hook_location(experiment, "no_decay"),
            help="return nt.default_no_decay(path, leaf) or a condition of your own",
        )

    return no_decay
