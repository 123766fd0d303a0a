"""Optimizer rules: `rule` makes one of a function, and these come with nitroc."""

from nitroc.rules.catalogue import SGD, Adam, Momentum, RAdam, bias_correction
from nitroc.rules.rule import Rule, namespace, rule, zeros

__all__ = [
    "SGD",
    "Adam",
    "Momentum",
    "RAdam",
    "Rule",
    "bias_correction",
    "namespace",
    "rule",
    "zeros",
]
