"""How to draw each operator of a random graph: options, operands, the shapes of its results.

What is legal follows from the operators' definitions, not from this package's rules.
"""

from tests.support.random_operators import (
    control,
    elementwise,
    indexing,
    layout,
    neural,
    recurrent,
    selection,
    stablehlo,
)
from tests.support.random_operators.elementwise import Draw as Draw

OPERATORS: dict[str, Draw] = {
    **elementwise.OPERATORS,
    **layout.OPERATORS,
    **indexing.OPERATORS,
    **neural.OPERATORS,
    **selection.OPERATORS,
    **recurrent.OPERATORS,
    **stablehlo.OPERATORS,
    **control.OPERATORS,
}

_STRINGS = "reads or creates strings, which no delegate accepts"
_HOST = "keeps a table of strings between invokes, on the host"
LEFT_OUT: dict[str, str] = {
    "CALL_ONCE": "initializes variables, on the host",
    "DENSIFY": "needs a sparse constant: tests/op_lowering/sparse/test_sparse.py draws them",
    "SKIP_GRAM": _STRINGS,
    **dict.fromkeys(("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"), _HOST),
    "STABLEHLO_CUSTOM_CALL": "means what its target says, and no target is known to LiteRT",
}

# LiteRT registers no kernel for these: only `unlimited` graphs contain them.
NOT_IN_LITERT = frozenset(
    {
        "CALL",
        "STABLEHLO_WHILE",
        *(
            f"STABLEHLO_{name}"
            for name in (
                *("SUBTRACT", "DIVIDE", "REMAINDER", "POWER", "OR", "ABS", "NEGATE"),
                *("COSINE", "EXPONENTIAL", "LOG", "LOGISTIC", "TANH", "RSQRT", "CBRT", "FLOOR"),
                *("COMPARE", "CONVERT", "SELECT", "CLAMP", "RESHAPE", "BROADCAST_IN_DIM", "IOTA"),
                *("TRANSPOSE", "CONCATENATE", "SLICE", "DYNAMIC_SLICE", "DYNAMIC_UPDATE_SLICE"),
                *("REDUCE", "SORT", "DOT_GENERAL", "CONVOLUTION"),
            )
        ),
    }
)
