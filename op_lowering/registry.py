"""Every operator that XLA can run; `reference/registry.py` is its twin in numpy."""

from jaxdelegate.op_lowering import (
    activation,
    attention,
    cast,
    comparison,
    composite,
    control_flow,
    convolution,
    custom,
    detection,
    elementwise,
    ended_convolution,
    indexing,
    layer_norm,
    layout,
    lookup,
    lstm,
    matmul,
    normalization,
    padding,
    pooling,
    pooling_argmax,
    random,
    recurrent,
    reduction,
    resize,
    resources,
    segment,
    shape,
    signal,
    slicing,
    sorting,
    sparse,
    stablehlo,
    stablehlo_gather,
    stablehlo_products,
    stablehlo_shape,
    stablehlo_sort,
    stablehlo_window,
    text,
    transpose_conv,
)
from jaxdelegate.op_lowering.options import FusedOptions, Options
from jaxdelegate.op_lowering.rule import OpRule, table

_MODULES = (
    activation,
    cast,
    comparison,
    composite,
    control_flow,
    convolution,
    custom,
    detection,
    elementwise,
    indexing,
    layout,
    lookup,
    lstm,
    matmul,
    normalization,
    padding,
    pooling,
    pooling_argmax,
    random,
    recurrent,
    reduction,
    resize,
    resources,
    segment,
    shape,
    signal,
    slicing,
    sorting,
    sparse,
    stablehlo,
    stablehlo_gather,
    stablehlo_products,
    stablehlo_shape,
    stablehlo_sort,
    stablehlo_window,
    text,
    transpose_conv,
)

RULES: dict[str, OpRule] = table(*(rule for m in _MODULES for rule in m.RULES.values()))

# Operators that no file holds; only rewrites make them.
FUSED: dict[str, OpRule] = {**attention.FUSED, **ended_convolution.FUSED, **layer_norm.FUSED}


def rule_of(name: str, options: Options) -> OpRule | None:
    """The rule of an operator; the options tell those that rewrites made from a file's."""
    return (FUSED if isinstance(options, FusedOptions) else RULES).get(name)
