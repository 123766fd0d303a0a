"""A training compiler: experiments become StableHLO bundles that train, evaluate and predict.

import nitroc as nt

class Digits(nt.Experiment): ...

nt.train(Digits(), max_epochs=5)               # in memory
nt.build(Digits(), "bundle/")                  # or as a bundle, for `nitroc run bundle/`
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nitro_dialect import DialectError
from nitro_runtime import data
from nitro_runtime.bundle import verify
from nitro_runtime.cache import cache_reset, cache_stats
from nitro_runtime.checkpoints import TopKCheckpointer, read_manifest
from nitro_runtime.data import NoPrefetch, Prefetch, check_batch_at
from nitro_runtime.errors import GuardError, NitroError
from nitro_runtime.logging import JSONLogger
from nitro_runtime.metrics import Concat, Max, Min
from nitro_runtime.run_dir import runs
from nitro_runtime.schedules import schedule
from nitro_runtime.snapshot import checkpoint_info
from nitro_runtime.stopping import EarlyStopping
from nitroc import nn, rules
from nitroc.frontend.experiment import (
    Experiment,
    config_metadata,
    device_fields,
    graphconst_fields,
    host_fields,
)
from nitroc.frontend.fields import Device, GraphConst, Host
from nitroc.frontend.groups import default_no_decay
from nitroc.frontend.hooks import traced
from nitroc.frontend.marks import (
    assert_finite,
    class_index,
    count_where,
    diagnostic,
    guard,
    metric,
    tap_gradient,
)
from nitroc.frontend.metadata import NO_DEFAULT
from nitroc.frontend.settings import from_preset
from nitroc.handle import Nitro
from nitroc.rules import namespace, rule, zeros
from nitroc.using import evaluate, open_bundle, predict, run

if TYPE_CHECKING:
    from nitroc.commands import build
    from nitroc.explaining import explain
    from nitroc.from_dump import build_from
    from nitroc.locating import locate_nonfinite
    from nitroc.stages import ir

__version__ = "0.1.0"

_COMPILING = {
    "build": "commands",
    "build_from": "from_dump",
    "explain": "explaining",
    "ir": "stages",
    "locate_nonfinite": "locating",
}
"""Functions that take the whole compiler, and their modules: a bundle that runs imports none."""


def __getattr__(name: str) -> Any:
    if name not in _COMPILING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_COMPILING[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_COMPILING})


def train(experiment: Experiment, **options: Any) -> Nitro:
    """`Nitro(experiment, **options).train()`."""
    return Nitro(experiment, **options).train()


__all__ = [
    "NO_DEFAULT",
    "Concat",
    "Device",
    "DialectError",
    "EarlyStopping",
    "Experiment",
    "GraphConst",
    "GuardError",
    "Host",
    "JSONLogger",
    "Max",
    "Min",
    "Nitro",
    "NitroError",
    "NoPrefetch",
    "Prefetch",
    "TopKCheckpointer",
    "assert_finite",
    "build",
    "build_from",
    "cache_reset",
    "cache_stats",
    "check_batch_at",
    "checkpoint_info",
    "class_index",
    "config_metadata",
    "count_where",
    "data",
    "default_no_decay",
    "device_fields",
    "diagnostic",
    "evaluate",
    "explain",
    "from_preset",
    "graphconst_fields",
    "guard",
    "host_fields",
    "ir",
    "locate_nonfinite",
    "metric",
    "namespace",
    "nn",
    "open_bundle",
    "predict",
    "read_manifest",
    "rule",
    "rules",
    "run",
    "runs",
    "schedule",
    "tap_gradient",
    "traced",
    "train",
    "verify",
    "zeros",
]
