"""Models from libraries: `model, params, state = nt.nn.linen(module, key, example)` and its like.

Each gives a model that holds no arrays, params and state as nested dicts of arrays, and one call:
`outputs, state = model.apply(params, state, *args, train=train, key=key)`. Flax and Equinox are
imported by the function that needs them, and by nothing else.
"""

from nitroc.nn.equinox_model import EquinoxModel, equinox
from nitroc.nn.linen_model import LinenModel, linen
from nitroc.nn.nnx_model import NnxModel, nnx

__all__ = ["EquinoxModel", "LinenModel", "NnxModel", "equinox", "linen", "nnx"]
