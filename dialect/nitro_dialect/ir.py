"""The data structure: values, regions, groups, functions, rules, programs, modules.

Structure only. Printing is `printer`, reading `parser`, checking `verifier`, comparing `compare`,
changing `rewrite`; ops are declared in `ops/` with the descriptors of `op`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from nitro_dialect.types import Type

if TYPE_CHECKING:
    from nitro_dialect.op import Op

ROLES = (
    "param", "slot", "state", "anchor", "const", "device", "scalars", "seed",
    "batch", "steps", "mask", "split", "index", "outputs",
)  # fmt: skip
"""What a program's input is; each role is a keyword of the text form."""

STATEFUL = ("param", "slot", "state")
"""Roles whose buffers a train program returns anew; it donates them."""


class Value:
    """One SSA value. `name` is where it comes from; equality of modules ignores it."""

    __slots__ = ("name", "type")
    __array_ufunc__ = None  # a numpy scalar on the left leaves the arithmetic to the value

    def __init__(self, type: Type, name: str) -> None:
        self.type = type
        self.name = name

    def __repr__(self) -> str:
        return f"%{self.name} : {self.type}"

    # Arithmetic emits into the region that `builder.building` made current.
    def __add__(self, other: Operand) -> Value:
        return _emit("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return _emit("add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return _emit("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return _emit("sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return _emit("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return _emit("mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return _emit("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return _emit("div", other, self)

    def __pow__(self, other: Operand) -> Value:
        return _emit("pow", self, other)

    def __rpow__(self, other: Operand) -> Value:
        return _emit("pow", other, self)

    def __neg__(self) -> Value:
        return _emit("neg", self)

    def __abs__(self) -> Value:
        return _emit("abs", self)

    def __lt__(self, other: Operand) -> Value:
        return _emit("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return _emit("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return _emit("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return _emit("ge", self, other)

    def __and__(self, other: Operand) -> Value:
        return _emit("and", self, other)

    def __or__(self, other: Operand) -> Value:
        return _emit("or", self, other)

    def __invert__(self) -> Value:
        return _emit("not", self)

    def __eq__(self, other: object) -> Any:
        """Identity between values; against a number, the op `eq`: a rule may write `g == 0`."""
        return _emit("eq", self, other) if isinstance(other, int | float) else self is other

    def __ne__(self, other: object) -> Any:
        return _emit("ne", self, other) if isinstance(other, int | float) else self is not other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(
            f"the truth of %{self.name} is not known while the program is built: "
            "use namespace(x).where(condition, a, b)"
        )


@dataclass(frozen=True)
class Literal:
    """A number written as an operand; its type is that of the op's other operands."""

    value: bool | int | float


Operand: TypeAlias = "Value | Literal | bool | int | float"
Attr: TypeAlias = "bool | int | float | str | tuple[str, ...]"


def _emit(name: str, *operands: Operand) -> Value:
    from nitro_dialect.builder import emit_scalar  # the builder needs Value: a cycle by nature

    return emit_scalar(name, *operands)


@dataclass
class Region:
    """Parameters and ops in order; the last op ends it (`yield`, `assign`, `report`...)."""

    params: list[Value] = field(default_factory=list[Value])
    ops: list[Op] = field(default_factory=list["Op"])


@dataclass(frozen=True)
class Leaf:
    """One row of a group table. `path` is the encoded key path (`dense_0.kernel`)."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    flags: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        count = 1
        for dim in self.shape:
            count *= dim
        return count


@dataclass(frozen=True)
class Group:
    """The leaves one `tree<name>` stands for. `role`: `param`, `state` or `outputs`."""

    name: str
    role: str
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True)
class Parameter:
    """A named argument or result of an imported function."""

    name: str
    type: Type


@dataclass(frozen=True)
class Function:
    """An imported function: signature and digest; its body stays StableHLO, outside the module.

    `of` and `wrt`: this is the gradient of `@of` with respect to its argument `wrt`.
    """

    name: str
    params: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    digest: str
    of: str | None = None
    wrt: str | None = None


@dataclass
class Rule:
    """An optimizer rule as its own text: element-wise body, so a dump resumes without Python.

    `body.params` are `elements` (`g`, `p`, slots; one f32 per element) then `scalars` (`t`, then
    the schedulable fields). It yields the unscaled update, then the slots' next values.
    """

    name: str
    elements: tuple[str, ...]
    scalars: tuple[str, ...]
    slots: tuple[tuple[str, str | float], ...]
    structure: dict[str, Attr]
    body: Region


@dataclass(frozen=True)
class Const:
    """A GraphConst field, for the reader of a dump: its value is already in the functions."""

    name: str
    value: str


@dataclass(frozen=True)
class Device:
    """A Device field leaf: `value` for a scalar, None for an array (the bundle has its values)."""

    name: str
    type: Type
    value: bool | int | float | None = None


Meta: TypeAlias = "bool | int | float | str"
"""What a mark's metadata may hold."""


@dataclass(frozen=True)
class Mark:
    """One call of `guard`, `assert_finite`, `metric` or `diagnostic` in the user's code.

    `key` names it in the module: its series (`name{k=v}`), with `#2`, `#3` for further calls of one
    series. `kind`: `guard`, `finite`, `metric` or `diagnostic`. `meta` is sorted by name. `reduce`:
    how values of a diagnostic combine, `mean max min sum`. `below`, `above`: strict bounds.
    `source`: `file:line:column`.

    What it counts are results `mark.<key>:<channel>` of functions; the channels are `CHANNELS`.
    """

    key: str
    kind: str
    name: str
    meta: tuple[tuple[str, Meta], ...] = ()
    reduce: str = "mean"
    below: float | None = None
    above: float | None = None
    source: str = ""


MARK_KINDS = ("guard", "finite", "metric", "diagnostic")

MARK_REDUCES = ("mean", "max", "min", "sum")

CHANNELS = {
    "count": ("i64", "sum"),
    "odd": ("i32", "max"),
    "sum": ("f32", "sum"),
    "n": ("i64", "sum"),
    "max": ("f32", "max"),
    "min": ("f32", "min"),
}
"""dtype of each channel of a mark, and how executions combine.

`count` are violations; `odd` says that a count was none, as 1 (negative), 2 (infinite), 3 (NaN);
`sum` and `n` are the total and number of values; `max` and `min` the extreme value.
"""


@dataclass
class Input:
    """A program's input. `initial` (slots): `zeros`, `param`, `host`, or a number."""

    role: str
    value: Value
    initial: str | bool | int | float | None = None


@dataclass
class Program:
    name: str
    inputs: list[Input]
    body: Region

    def input(self, name: str) -> Input:
        """The input called `name`; KeyError lists those there are."""
        for item in self.inputs:
            if item.value.name == name:
                return item
        raise KeyError(f"no input %{name} in @{self.name}: {[i.value.name for i in self.inputs]}")


@dataclass
class Module:
    """What one `.nir` file holds. `done` and `left` are the pipeline before and after it."""

    name: str
    done: str = ""
    left: str = ""
    consts: list[Const] = field(default_factory=list[Const])
    devices: list[Device] = field(default_factory=list[Device])
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])
    groups: dict[str, Group] = field(default_factory=dict[str, Group])
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    rules: dict[str, Rule] = field(default_factory=dict[str, Rule])
    programs: dict[str, Program] = field(default_factory=dict[str, Program])

    def __eq__(self, other: object) -> bool:
        from nitro_dialect.compare import difference

        return isinstance(other, Module) and difference(self, other) is None

    __hash__ = None  # type: ignore[assignment]

    def regions(self) -> Iterator[Region]:
        """Bodies of all rules and programs, outermost only."""
        yield from (rule.body for rule in self.rules.values())
        yield from (program.body for program in self.programs.values())
