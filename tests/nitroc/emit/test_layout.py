"""How leaves lie in buffers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_dialect.ir import Group, Leaf
from nitroc.emit import GroupLayout, plan
from nitroc.errors import BuildError

DECAY = frozenset({"decay"})
GROUP = Group(
    "default",
    "param",
    (
        Leaf("a.bias", "f32", (8,)),
        Leaf("a.kernel", "f32", (4, 8), DECAY),
        Leaf("big", "f32", (64, 64), DECAY),
        Leaf("c.bias", "f32", ()),
        Leaf("c.kernel", "f32", (4095,), DECAY),
        Leaf("half", "bf16", (3,)),
    ),
)


def shown(layout: GroupLayout) -> dict[str, tuple[tuple[str, int], ...]]:
    return {b.name: b.leaves for b in layout.buffers}


def test_auto_packs_small_leaves_of_one_dtype_and_flags() -> None:
    layout = plan(GROUP, "auto")
    assert shown(layout) == {
        "packed.f32": (("a.bias", 0), ("c.bias", 8)),
        "packed.f32.decay": (("a.kernel", 0), ("c.kernel", 32)),
        "big": (("big", 0),),
        "packed.bf16": (("half", 0),),
    }
    assert [b.shape for b in layout.buffers] == [(9,), (4127,), (64, 64), (3,)]


def test_flat_packs_all_and_leaves_none() -> None:
    assert "big" not in shown(plan(GROUP, "flat"))
    assert list(shown(plan(GROUP, "leaves"))) == [leaf.path for leaf in GROUP.leaves]


def test_outputs_are_never_packed() -> None:
    outputs = Group("outputs.b8", "outputs", GROUP.leaves)
    assert plan(outputs, "flat").buffers == plan(outputs, "leaves").buffers


def test_a_leaf_may_be_called_like_a_packed_buffer() -> None:
    leaves = (Leaf("packed.f32", "f32", (5000,)), Leaf("x", "f32", (2,)))
    names = list(shown(plan(Group("default", "param", leaves), "auto")))
    assert names == ["packed.f32", "packed.f32."]


def test_an_unknown_layout_names_the_close_one() -> None:
    with pytest.raises(BuildError, match=r"E-BUILD-025.*\n.*did you mean 'leaves'"):
        plan(GROUP, "leafs")


LEAVES = st.lists(
    st.tuples(
        st.sampled_from(["f32", "bf16", "i32"]),
        st.lists(st.integers(0, 80), max_size=3),
        st.frozensets(st.sampled_from(["decay", "key:threefry2x32"])),
    ),
    max_size=12,
)


@given(LEAVES, st.sampled_from(["auto", "flat", "leaves"]))
def test_every_element_has_one_place(
    leaves: list[tuple[str, list[int], frozenset[str]]], mode: str
) -> None:
    rows = tuple(Leaf(f"l{i}", d, tuple(s), f) for i, (d, s, f) in enumerate(leaves))
    layout = plan(Group("g", "param", rows), mode)
    placed = [path for b in layout.buffers for path, _ in b.leaves]
    assert sorted(placed) == sorted(leaf.path for leaf in rows)
    assert len({b.name for b in layout.buffers}) == len(layout.buffers)
    for buffer, held in layout.rows():
        assert {(leaf.dtype, leaf.flags) for leaf, _ in held} == {(buffer.dtype, held[0][0].flags)}
        end = 0
        for leaf, offset in held:
            assert offset == end
            end += leaf.size
        assert end == buffer.size
