# pyright: basic
"""Every convolution to NHWC / HWIO / NHWC by transposes around it.

XLA's own canonicalisation visits the entry computation only, so a convolution in a device loop
stays in whatever layout differentiation gave it: 11x slower on CPU, and not the same bits as the
single step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nitroc.frontend.jax_internals import hlo, ir


def canonicalise(module: Any) -> int:
    """Rewrites `module` in place; how many convolutions were not canonical."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.operation.name == "stablehlo.convolution":
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    with module.context:
        return sum(_rewrite(op) for op in found)


def _rewrite(op: Any) -> bool:
    numbers = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    inputs = [
        numbers.input_batch_dimension,
        *numbers.input_spatial_dimensions,
        numbers.input_feature_dimension,
    ]
    kernel = [
        *numbers.kernel_spatial_dimensions,
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
    ]
    output = [
        numbers.output_batch_dimension,
        *numbers.output_spatial_dimensions,
        numbers.output_feature_dimension,
    ]
    identity = list(range(len(inputs)))
    if inputs == kernel == output == identity:
        return False
    with ir.InsertionPoint(op), op.location:
        operands = [_transposed(op.operands[0], inputs), _transposed(op.operands[1], kernel)]
        made = ir.Operation.create(
            "stablehlo.convolution",
            results=[_permuted(op.results[0].type, output)],
            operands=operands,
            attributes=_attributes(op, len(identity) - 2),
        )
        back = [output.index(i) for i in identity]
        result = _transposed(made.results[0], back)
    op.results[0].replace_all_uses_with(result)
    op.erase()
    return True


def _transposed(value: Any, order: Sequence[int]) -> Any:
    if list(order) == list(range(len(order))):
        return value
    return hlo.transpose(value, ir.DenseI64ArrayAttr.get(list(order)))


def _permuted(type: Any, order: Sequence[int]) -> Any:
    shaped = ir.RankedTensorType(type)
    return ir.RankedTensorType.get([shaped.shape[i] for i in order], shaped.element_type)


def _attributes(op: Any, spatial: int) -> dict[str, Any]:
    kept = dict(op.attributes.items())
    middle = list(range(1, spatial + 1))
    kept["dimension_numbers"] = hlo.ConvDimensionNumbers.get(
        0, spatial + 1, middle, spatial, spatial + 1, list(range(spatial)), 0, spatial + 1, middle
    )
    return kept
