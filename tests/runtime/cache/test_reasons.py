"""Reasons of a miss: the differing ingredients, against the nearest program of the role."""

from __future__ import annotations

import pytest

from nitro_runtime.cache_reasons import Ingredients, explain, role_of

MADE_FOR = {"platform": "cpu", "jaxlib": "0.10.2", "XLA_FLAGS": ""}
BASE = {
    "program": "train_step",
    "GraphConst width": "128",
    "hook loss": "9f3c exp.py:40",
    "batch img": "f32[32,64]",
    "pipeline": "differentiate,commit",
    "layout": "auto",
}


def program(**changes):
    named = {**BASE, **{name.replace("_", " ", 1): v for name, v in changes.items()}}
    return Ingredients({k: v for k, v in named.items() if v is not None}, MADE_FOR)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"GraphConst_width": "256"}, "GraphConst width 128 -> 256"),
        ({"hook_loss": "77aa exp.py:41"}, "hook loss changed (exp.py:41)"),
        ({"hook_loss": "77aa"}, "hook loss changed"),
        ({"batch_img": "f32[64,64]"}, "batch img f32[32,64] -> f32[64,64]"),
        ({"batch_img": None}, "batch img removed"),
        ({"hook_metrics": "aa exp.py:9"}, "hook metrics added"),
        ({"hook_loss": "9f3c exp.py:77"}, "program text changed"),
        ({}, "program text changed"),
    ],
)
def test_B02_a_change_is_named(change, reason):
    assert explain(program(**change), [program()]) == reason


def test_the_first_program_of_its_kind_is_a_first_use():
    assert explain(program(), []) == "first use"


def test_programs_of_another_experiment_explain_nothing():
    assert explain(program(experiment="A"), [program(experiment="B")]) == "first use"


def test_the_nearest_program_explains_and_the_last_of_equals():
    far = program(GraphConst_width="1", batch_img="f32[1,64]")
    near, later = program(GraphConst_width="64"), program(GraphConst_width="32")
    wanted = program(GraphConst_width="256")
    assert explain(wanted, [far, near, later, far]) == "GraphConst width 32 -> 256"


def test_the_machine_is_an_ingredient():
    other = Ingredients(program().named, {**MADE_FOR, "jaxlib": "0.10.1", "XLA_FLAGS": "--x"})
    reason = explain(program(), [other])
    assert reason == "jaxlib 0.10.1 -> 0.10.2, XLA_FLAGS --x -> none"


def test_sizes_in_the_name_are_said_where_nothing_else_is():
    four = {"program": "reduce.b4.r4", "rows": "4"}
    two = {"program": "reduce.b4.r2", "rows": "2"}
    assert explain(Ingredients(two, {}), [Ingredients(four, {})]) == "rows 4 -> 2"
    only = [Ingredients({"program": p}, {}) for p in ("reduce.b4.r2", "reduce.b4.r4")]
    assert explain(only[0], [only[1]]) == "program reduce.b4.r4 -> reduce.b4.r2"


def test_many_changes_are_cut_short():
    changed = program(**{k.replace(" ", "_", 1): "z" for k in BASE if k != "program"})
    assert explain(changed, [program()]).endswith(" and 1 more")


def test_roles_leave_the_sizes_out():
    assert role_of({"program": "reduce.b32.r7"}) == "reduce"
    assert role_of({"program": "forward.b32"}) == "forward"
    assert role_of({"program": "train_step"}) == "train_step"
