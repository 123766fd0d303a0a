"""What each IR value is while a program is emitted: one tensor, or a tree's buffers and leaves.

A tree is made in one form and brought to the other where it is first asked for. A form made inside
a region is known there only, so that nothing outside reads a value that does not dominate it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice

from nitro_dialect.ir import Literal, Module, Region, Value
from nitro_dialect.op import Op
from nitro_dialect.types import SeedType, TensorType, TreeType, Type, VecType
from nitroc.emit import mlir
from nitroc.emit.layout import GroupLayout
from nitroc.emit.mlir import Tensor
from nitroc.errors import BuildError

Shape = tuple[str, tuple[int, ...]]
"""dtype and shape of one tensor."""

ENDS = ("yield", "assign", "report", "output")
"""Ops that say what a region or program gives; they emit nothing by themselves."""

Rule = Callable[["Scope", Op], None]


class Commits(Enum):
    """How a commit is emitted."""

    LOOP = "a loop that runs at most once"
    SELECT = "a select between the old value and the new one"


class Scope:
    """Values of one region and, through `parent`, of those around it."""

    def __init__(
        self,
        module: Module,
        layouts: Mapping[str, GroupLayout],
        rules: Mapping[str, Rule],
        parent: Scope | None = None,
        commits: Commits = Commits.LOOP,
    ) -> None:
        self.module = module
        self.layouts = layouts
        self.rules = rules
        self.parent = parent
        self.commits = commits
        self.scalars: Callable[[Scope], None] | None = None
        self._tensors: dict[Value, Tensor] = {}
        self._buffers: dict[Value, list[Tensor]] = {}
        self._leaves: dict[Value, list[Tensor]] = {}

    def child(self) -> Scope:
        return Scope(self.module, self.layouts, self.rules, self, self.commits)

    def unpack_scalars(self) -> None:
        """Makes the packed argument's scalars anew here: a loop then reads one value, not each."""
        root = self
        while root.parent is not None:
            root = root.parent
        if root.scalars is not None:
            root.scalars(self)

    def run(self, region: Region) -> list[Op]:
        """Emits the region's ops; returns those of `ENDS`, which are the caller's to use."""
        ends: list[Op] = []
        for op in region.ops:
            if op.mnemonic in ENDS:
                ends.append(op)
                continue
            rule = self.rules.get(op.mnemonic)
            if rule is None:
                raise BuildError(
                    23,
                    f"{op.mnemonic} has no emission rule",
                    where=op.location,
                    help="run the `expand` pass first: it rewrites named ops to core ones",
                )
            name = op.results[0].name if op.results else op.mnemonic
            with mlir.located(name, op.location):
                rule(self, op)
        return ends

    # Tensors

    def set_tensor(self, value: Value, tensor: Tensor) -> None:
        self._tensors[value] = tensor

    def tensor(self, value: Value) -> Tensor:
        """The tensor of a value that is no tree."""
        found = self._find(value, lambda s: s._tensors)
        assert found is not None, value
        return found

    def operand(self, operand: Value | Literal, dtype: str, shape: Sequence[int] = ()) -> Tensor:
        """An operand as a tensor; a literal takes `dtype` and `shape`."""
        if isinstance(operand, Value):
            return self.tensor(operand)
        return mlir.constant(operand.value, dtype, shape)

    # Trees

    def set_buffers(self, value: Value, buffers: Sequence[Tensor]) -> None:
        self._buffers[value] = list(buffers)

    def set_leaves(self, value: Value, leaves: Sequence[Tensor]) -> None:
        self._leaves[value] = list(leaves)

    def buffers(self, value: Value) -> list[Tensor]:
        """A tree's buffers, in the order of its group's layout."""
        found = self._find(value, lambda s: s._buffers)
        if found is None:
            found = pack(self.layout(value.type), self.leaves(value))
            self.set_buffers(value, found)
        return found

    def leaves(self, value: Value) -> list[Tensor]:
        """A tree's leaves, in the order of its group's table."""
        found = self._find(value, lambda s: s._leaves)
        if found is None:
            held = self._find(value, lambda s: s._buffers)
            assert held is not None, value
            found = unpack(self.layout(value.type), held)
            self.set_leaves(value, found)
        return found

    def has(self, value: Value) -> bool:
        """Whether a tree is known here, in either form."""
        forms = (self._find(value, lambda s: s._buffers), self._find(value, lambda s: s._leaves))
        return any(form is not None for form in forms)

    def layout(self, type: Type) -> GroupLayout:
        assert isinstance(type, TreeType | VecType), type
        return self.layouts[type.group]

    # Any value, as control flow carries it

    def flat(self, value: Value) -> list[Tensor]:
        return self.buffers(value) if isinstance(value.type, TreeType) else [self.tensor(value)]

    def flat_leaves(self, value: Value) -> list[Tensor]:
        return self.leaves(value) if isinstance(value.type, TreeType) else [self.tensor(value)]

    def flat_types(self, type: Type) -> list[Shape]:
        if isinstance(type, TreeType):
            return [(type.dtype or b.dtype, b.shape) for b in self.layout(type).buffers]
        if isinstance(type, TensorType):
            return [(type.dtype, type.shape)]
        if isinstance(type, SeedType):
            return [("ui32", (2,))]
        return [("f32", (len(self.layout(type).group.leaves),))]

    def leaf_types(self, type: Type) -> list[Shape]:
        """As `flat_types`, a tree by its leaves: how imported functions take it."""
        if not isinstance(type, TreeType):
            return self.flat_types(type)
        return [(type.dtype or leaf.dtype, leaf.shape) for leaf in self.layout(type).group.leaves]

    def bind(self, values: Iterable[Value], tensors: Iterable[Tensor]) -> None:
        """The inverse of `flat` over several values."""
        stream = iter(tensors)
        for value in values:
            count = len(self.flat_types(value.type))
            self._set_flat(value, islice(stream, count), self.set_buffers)

    def bind_leaves(self, values: Iterable[Value], tensors: Iterable[Tensor]) -> None:
        """The inverse of `flat_leaves` over several values."""
        stream = iter(tensors)
        for value in values:
            count = len(self.leaf_types(value.type))
            self._set_flat(value, islice(stream, count), self.set_leaves)

    def _set_flat(
        self,
        value: Value,
        tensors: Iterator[Tensor],
        set_tree: Callable[[Value, Sequence[Tensor]], None],
    ) -> None:
        if isinstance(value.type, TreeType):
            set_tree(value, list(tensors))
        else:
            self.set_tensor(value, next(tensors))

    def _find(self, value: Value, table: Callable[[Scope], dict[Value, Tensor]]) -> Tensor | None:
        scope: Scope | None = self
        while scope is not None:
            if value in table(scope):
                return table(scope)[value]
            scope = scope.parent
        return None


def pack(layout: GroupLayout, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Leaves in table order as buffers: flattened and concatenated where packed."""
    by_path = {leaf.path: x for leaf, x in zip(layout.group.leaves, leaves, strict=True)}
    made: list[Tensor] = []
    for buffer, rows in layout.rows():
        parts = [by_path[leaf.path] for leaf, _ in rows]
        if buffer.packed:
            flat = [mlir.reshape(p, (leaf.size,)) for p, (leaf, _) in zip(parts, rows, strict=True)]
            parts = [mlir.concatenate(flat)]
        made += parts
    return made


def unpack(layout: GroupLayout, buffers: Sequence[Tensor]) -> list[Tensor]:
    """Buffers as leaves in table order."""
    by_path: dict[str, Tensor] = {}
    for (buffer, rows), x in zip(layout.rows(), buffers, strict=True):
        for leaf, offset in rows:
            part = mlir.window(x, (offset,), (leaf.size,)) if buffer.packed else x
            by_path[leaf.path] = mlir.reshape(part, leaf.shape)
    return [by_path[leaf.path] for leaf in layout.group.leaves]
