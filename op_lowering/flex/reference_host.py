"""Tables, checks and tf.Example records (core/kernels/{lookup_table,logging}_op*.cc).

Hash tables are those of the builtin operators, in the interpreter's store of resources.
"""

import sys
from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.flex.reference_text import scalar
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.resources.reference import (
    handle,
    hashtable_find,
    hashtable_find_shape,
    hashtable_import,
    hashtable_size,
    none_declared,
    nothing,
)
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.op_lowering.text.reference_parse_example import (
    parse_example,
    parse_example_shapes,
    parse_example_v2,
    parse_example_v2_shapes,
)
from jaxdelegate.reference.kernel import (
    Array,
    Folds,
    Function,
    Kernel,
    Services,
    as_run,
    same_shape,
    undeclared_shapes,
)

# ---- tables


def hash_table(o: FlexOptions) -> Array:
    name = o.shared_name or o.data.decode("latin-1")
    return handle("TensorFlow's table", o.container, name).reshape(())


def table_size(
    call: Services, o: FlexOptions, inputs: Specs, outputs: Specs, table: Array
) -> tuple[Array]:
    (size,) = hashtable_size(call, o, inputs, outputs, table)
    return (size.reshape(()),)


# ---- NoOp, CheckNumerics, Assert, Print, PrintV2


def no_op(_o: FlexOptions, *_arrays: Array) -> tuple[()]:
    return ()


def check_numerics(o: FlexOptions, x: Array) -> Array:
    wrong = {"NaN": np.isnan(x), "infinity": np.isinf(x)}
    kinds = [kind for kind, places in wrong.items() if places.any()]
    if kinds:
        raise ValueError(f"{o.message}: the tensor has {' and '.join(kinds)}")
    return x


def assert_(o: FlexOptions, condition: Array, *data: Array) -> tuple[()]:
    if not condition.all():
        raise ValueError(f"assertion failed: {_summary(o, data)}")
    return ()


def print_(o: FlexOptions, x: Array, *data: Array) -> Array:
    sys.stderr.write(f"{o.message}{_summary(o, data)}\n")
    return x


def print_text(o: FlexOptions, x: Array) -> tuple[()]:
    sys.stderr.write(_text(x.reshape(-1)[0]) + o.end)
    return ()


def _summary(o: FlexOptions, data: Sequence[Array]) -> str:
    return " ".join(f"[{_values(array.reshape(-1), o.summarize)}]" for array in data)


def _values(flat: Array, most: int) -> str:
    shown = flat if most < 0 else flat[:most]
    return " ".join(map(_text, shown)) + ("..." if len(shown) < len(flat) else "")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:g}" if isinstance(value, np.floating) else str(value)


_TABLE_IMPORT = Kernel(hashtable_import, nothing, calls=True, inferred_shapes=none_declared)


def _effect(function: Function) -> Kernel:
    """Without results."""
    return Kernel(as_run(function), nothing, Folds.NEVER, inferred_shapes=none_declared)


KERNELS = kernels(
    {
        "Assert": _effect(assert_),
        "CheckNumerics": (check_numerics, same_shape),
        "HashTableV2": (hash_table, scalar),
        "InitializeTableV2": _TABLE_IMPORT,
        "LookupTableFindV2": Kernel(hashtable_find, hashtable_find_shape, calls=True),
        "LookupTableImportV2": _TABLE_IMPORT,
        "LookupTableSizeV2": Kernel(table_size, scalar, calls=True),
        "NoOp": _effect(no_op),
        "ParseExample": Kernel(
            parse_example, undeclared_shapes, inferred_shapes=parse_example_shapes
        ),
        "ParseExampleV2": Kernel(
            parse_example_v2, undeclared_shapes, inferred_shapes=parse_example_v2_shapes
        ),
        "Print": Kernel(as_run(print_), same_shape, Folds.NEVER),
        "PrintV2": _effect(print_text),
    }
)
