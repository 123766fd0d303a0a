"""One file per family. Importing this package registers every op."""

from nitro_dialect.ops.accum import Accum
from nitro_dialect.ops.call import Call, Grad
from nitro_dialect.ops.clip import ClipByNorm
from nitro_dialect.ops.commit import Commit
from nitro_dialect.ops.guard import GuardAll
from nitro_dialect.ops.optimizer import Apply, Decay, OptRule
from nitro_dialect.ops.scalar import (
    BINARY,
    COMPARE,
    ELEMENTWISE,
    UNARY,
    Convert,
    IsFinite,
    Select,
    Words,
)
from nitro_dialect.ops.terminators import Assign, Output, Report, Yield
from nitro_dialect.ops.tree import (
    At,
    FirstNonfinite,
    Fold,
    FoldLeaf,
    Map,
    Norm,
    TreeCast,
    TreeDiv,
    VecSum,
)

__all__ = [
    "BINARY",
    "COMPARE",
    "ELEMENTWISE",
    "UNARY",
    "Accum",
    "Apply",
    "Assign",
    "At",
    "Call",
    "ClipByNorm",
    "Commit",
    "Convert",
    "Decay",
    "FirstNonfinite",
    "Fold",
    "FoldLeaf",
    "Grad",
    "GuardAll",
    "IsFinite",
    "Map",
    "Norm",
    "OptRule",
    "Output",
    "Report",
    "Select",
    "TreeCast",
    "TreeDiv",
    "VecSum",
    "Words",
    "Yield",
]
