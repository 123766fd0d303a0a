# pyright: basic
"""Where jax cuts a program in two halves, or drops what is dead: each mark stays, in one half.

* A `while` that is checkpointed or linearized runs in the first half, and whole in the second: its
  marks are the first half's.
* A checkpointed call of which no operand and no result is used is dropped just when it has an
  effect: with a mark it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nitroc.frontend.jax_internals import dce_jaxpr, while_p
from nitroc.frontend.mark_jaxprs import (
    first_mark_in_rule,
    holds_mark,
    inner_jaxprs,
    uncounted,
    unmarked_equation,
    unmarked_params,
)

Rule = Callable[..., Any]


def checkpointed_while(rule: Rule) -> Rule:
    """The rule that gives both halves as equations; `rule` is that of jax."""

    def halves(saveable: Any, unknown: Any, there: Any, equation: Any) -> Any:
        _refuse_rules(inner_jaxprs(equation.params))
        first, second, *rest = rule(saveable, unknown, there, equation)
        if first is not None and second is not None and holds_mark([first]):
            second = unmarked_equation(second)
        return first, second, *rest

    return halves


def linearized_while(rule: Rule) -> Rule:
    """The rule that runs the first half and leaves the second; `rule` is that of jax."""

    def halves(trace: Any, *tracers: Any, **params: Any) -> Any:
        known = {tracer.is_known() for tracer in tracers}
        if len(known) == 1 or not holds_mark(inner_jaxprs(params)):
            return rule(trace, *tracers, **params)
        second = _Second(trace)
        found = rule(second, *tracers, **params)
        if found is second.staged:
            # it was not cut: all of it is left for later
            return trace.default_process_primitive(while_p, tracers, params)
        _refuse_rules(inner_jaxprs(params))
        return found

    return halves


def _refuse_rules(jaxprs: Sequence[Any]) -> None:
    """E-CONTRACT-026: a rule of the user's is traced anew, marks and all, where it is derived."""
    mark = first_mark_in_rule(jaxprs)
    if mark is not None:
        raise uncounted(mark, "a custom rule, in a while loop that a derivative runs again")


class _Second:
    """The trace, for the rule of `while`: what it leaves for later has no marks."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.staged: Any = None

    def default_process_primitive(self, primitive: Any, tracers: Any, params: Any) -> Any:
        self.staged = self.trace.default_process_primitive(
            primitive, tracers, unmarked_params(params)
        )
        return self.staged


def keeping_remat(rule: Rule) -> Rule:
    """The rule that drops what is dead of a checkpointed call; `rule` is that of jax."""

    def eliminated(used: Sequence[bool], equation: Any) -> Any:
        operands, left = rule(used, equation)
        if left is not None or not holds_mark(inner_jaxprs(equation.params)):
            return operands, left
        jaxpr, operands = dce_jaxpr(equation.params["jaxpr"], used)
        every = equation.params["prevent_cse"]
        params = {
            **equation.params,
            "jaxpr": jaxpr,
            "prevent_cse": () if isinstance(every, tuple) else every,
        }
        left = equation.replace(invars=[], outvars=[], params=params, effects=jaxpr.effects)
        return operands, left

    return eliminated
