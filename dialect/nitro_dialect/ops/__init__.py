"""One file per family. Importing this package registers every op."""

from nitro_dialect.ops.accum import Accum
from nitro_dialect.ops.call import Call, Grad
from nitro_dialect.ops.clip import ClipByNorm
from nitro_dialect.ops.commit import Commit
from nitro_dialect.ops.guard import GuardAll
from nitro_dialect.ops.leaf import (
    RULE_OPS,
    LeafFold,
    LeafMap,
    LeafSize,
    RuleMark,
    leafwise,
    varying,
)
from nitro_dialect.ops.optimizer import Apply, Decay, OptMarks, OptRule
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
from nitro_dialect.ops.tree import At, Fold, FoldLeaf, Map, Norm, TreeCast, TreeDiv
from nitro_dialect.ops.vec import FirstNonfinite, FirstNonzero, VecAt, VecCount, VecFold, VecSum

__all__ = [
    "BINARY",
    "COMPARE",
    "ELEMENTWISE",
    "RULE_OPS",
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
    "FirstNonzero",
    "Fold",
    "FoldLeaf",
    "Grad",
    "GuardAll",
    "IsFinite",
    "LeafFold",
    "LeafMap",
    "LeafSize",
    "Map",
    "Norm",
    "OptMarks",
    "OptRule",
    "Output",
    "Report",
    "RuleMark",
    "Select",
    "TreeCast",
    "TreeDiv",
    "VecAt",
    "VecCount",
    "VecFold",
    "VecSum",
    "Words",
    "Yield",
    "leafwise",
    "varying",
]
