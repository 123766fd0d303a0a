"""Folding of equal sub-trees is lossless and keeps the order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from modules import leaf_paths

from nitro_dialect.folding import fold, unfold
from nitro_dialect.ir import Leaf


def leaves(*paths: str, dtype: str = "f32") -> list[Leaf]:
    return [Leaf(path, dtype, (2,)) for path in paths]


def spelled(*paths: str) -> list[str]:
    return [row.path for row in fold(leaves(*paths))]


@given(leaf_paths(), st.randoms(use_true_random=False))
def test_unfold_is_the_inverse_of_fold(paths: list[str], random: object) -> None:
    rows = leaves(*paths)
    assert unfold(fold(rows)) == rows
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert unfold(fold(rows)) == rows


def test_blocks_fold_to_one_row_per_leaf() -> None:
    paths = [f"block_{i}.{w}" for i in range(12) for w in ("attn.k", "attn.q", "norm")]
    assert spelled(*paths) == [f"block_{{0..11}}.{w}" for w in ("attn.k", "attn.q", "norm")]


def test_an_order_by_text_is_kept() -> None:
    paths = sorted(f"block_{i}.w" for i in range(12))
    assert spelled(*paths) == ["block_{0,1,10,11,2..9}.w"]


def test_sub_trees_fold_inside_sub_trees() -> None:
    paths = [f"stage_{i}.block_{j}.{w}" for i in range(4) for j in range(6) for w in "ab"]
    assert spelled(*paths) == [f"stage_{{0..3}}.block_{{0..5}}.{w}" for w in "ab"]


def test_items_of_a_list_fold() -> None:
    assert spelled("#0", "#1", "#2") == ["#{0..2}"]
    assert spelled("w.#0.a", "w.#0.b", "w.#1.a", "w.#1.b") == ["w.#{0,1}.a", "w.#{0,1}.b"]


@pytest.mark.parametrize(
    "paths",
    [
        ["dense_0.kernel", "dense_1.bias"],
        ["w%20", "w%21"],
        ["b01", "b02"],
        ["w1x", "w10"],
        ["a{0}", "a{1}"],
        ["räum 1", "räum 2"],
    ],
)
def test_what_is_no_run_stays_plain(paths: list[str]) -> None:
    rows = fold(leaves(*paths))
    assert len(rows) == len(paths)
    assert not any("{0," in row.path or "{1," in row.path for row in rows)


def test_rows_of_other_type_do_not_fold() -> None:
    rows = [*leaves("w_0.a"), *leaves("w_1.a", dtype="bf16")]
    assert [row.path for row in fold(rows)] == ["w_0.a", "w_1.a"]
    flagged = [Leaf("w_0.a", "f32", (), frozenset({"decay"})), Leaf("w_1.a", "f32", ())]
    assert unfold(fold(flagged)) == flagged


def test_two_runs_with_equal_braces_stay_two() -> None:
    rows = leaves("b_0.q", "b_1.q", "b_0.k", "b_1.k")
    assert [row.path for row in fold(rows)] == ["b_{0,1}.q", "b_0.k", "b_1.k"]
    assert unfold(fold(rows)) == rows


def test_braces_that_count_down_or_too_far_are_refused() -> None:
    for braces in ("3..0", "0..999999"):
        with pytest.raises(ValueError, match="no range"):
            unfold(leaves(f"a_{{{braces}}}"))
