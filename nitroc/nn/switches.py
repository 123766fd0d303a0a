"""How a module is told whether it trains: by the parameters that its call declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_TRAINING = ("train", "training", "is_training")
_EVALUATING = ("deterministic", "inference", "use_running_average")
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def declared(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of `call` that can be given by name; none when it shows no signature."""
    try:
        parameters = inspect.signature(call).parameters
    except (TypeError, ValueError):
        return {}
    return {name: p for name, p in parameters.items() if p.kind in _BY_KEYWORD}


def switches(call: Callable[..., Any], train: bool) -> dict[str, bool]:
    """What `call` is handed: `train training is_training` are `train`, `deterministic inference
    use_running_average` its opposite, each when declared."""
    names = declared(call)
    on = {name: train for name in _TRAINING if name in names}
    return on | {name: not train for name in _EVALUATING if name in names}


def switch_text(call: Callable[..., Any]) -> str:
    """`train=train`, or `deterministic=not train`; how `switches` reads for `repr`."""
    given = switches(call, True)
    return ", ".join(f"{name}={'train' if on else 'not train'}" for name, on in given.items())
