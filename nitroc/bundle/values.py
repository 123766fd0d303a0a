"""Values of fields and options, as a manifest records them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, cast

import numpy as np

from nitro_runtime.canonical import Json, digest
from nitro_runtime.manifest import ScheduleEntry
from nitro_runtime.recorded import CONSTANT

_NOT_FINITE = ("nan", "inf", "-inf")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def recorded(value: object) -> Json:
    """`value` when it is JSON; an array as dtype, shape and digest; else `{"repr": ...}`.

    The result depends on the value alone: no memory address, no absolute path of a `Path`.
    """
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"repr": repr(float(value))}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return recorded(value.item())
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        return _array(np.asarray(value))
    if isinstance(value, (list, tuple)):
        return [recorded(item) for item in cast(Sequence[object], value)]
    if isinstance(value, Mapping):
        mapping = cast(Mapping[object, object], value)
        if all(isinstance(key, str) for key in mapping):
            return {str(key): recorded(item) for key, item in mapping.items()}
    return {"repr": _repr(value)}


def restored(value: Json) -> Any:
    """A number or container as `recorded` gave it; NaN and the infinities are numbers again."""
    if isinstance(value, dict) and value.get("repr") in _NOT_FINITE:
        return float(str(value["repr"]))
    return value


def constant(value: float) -> ScheduleEntry:
    """The entry of a scalar that nothing moves; JSON has no NaN or infinity to record."""
    held = float(value)
    return ScheduleEntry(CONSTANT, None, (held,) if math.isfinite(held) else None)


def _array(array: np.ndarray[Any, Any]) -> Json:
    content = digest(np.ascontiguousarray(array).tobytes())
    return {"dtype": str(array.dtype), "shape": list(array.shape), "sha256": content}


def _repr(value: object) -> str:
    if isinstance(value, PurePath):
        return f"Path('{'.../' + value.name if value.is_absolute() else value.as_posix()}')"
    if isinstance(value, type) or callable(value):
        module = getattr(value, "__module__", "")
        return f"{module}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return _ADDRESS.sub("", repr(value))
