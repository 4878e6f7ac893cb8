"""Tables, sets, checks and tf.Example records (core/kernels/{lookup_table,unique,logging}_op*.cc).

Hash tables are those of the builtin operators, in the interpreter's store of resources.
"""

import sys
from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexCheckOptions, FlexTableOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.resources.reference import (
    handle,
    hashtable_find,
    hashtable_find_shape,
    hashtable_import,
    hashtable_size,
    none_declared,
    nothing,
)
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.op_lowering.text.reference_parse_example import (
    parse_example,
    parse_example_shapes,
    parse_example_v2,
    parse_example_v2_shapes,
)
from jaxdelegate.reference.kernel import (
    Array,
    Folds,
    Kernel,
    Services,
    same_shape,
    undeclared_shapes,
)
from jaxdelegate.reference.movement import ints, resolved_axis

_Shapes = tuple[Shape | None, ...]


# ---- tables


def scalar(_o: FlexOptions, _inputs: Specs) -> _Shapes:
    return ((),)


def hash_table(o: FlexTableOptions, _inputs: Specs, _outputs: Specs) -> tuple[Array]:
    name = o.shared_name or o.data.decode("latin-1")
    return (handle("TensorFlow's table", o.container, name).reshape(()),)


def table_size(
    call: Services, o: FlexOptions, inputs: Specs, outputs: Specs, table: Array
) -> tuple[Array]:
    (size,) = hashtable_size(call, o, inputs, outputs, table)
    return (size.reshape(()),)


# ---- UniqueV2: values, the axis of what is compared (none: a vector's values)


def unique_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    x, axis = inputs[:2]
    if axis.const is None:
        return None, None
    return None, (x.shape[_unique_axis(np.asarray(axis.const), len(x.shape))],)


def _unique_axis(axis: Array, rank: int) -> int:
    if axis.size > 1 or (axis.size == 0 and rank != 1):
        raise ValueError(f"UniqueV2 along {ints(axis)} of rank {rank}: expected one axis")
    return resolved_axis((ints(axis) or [0])[0], rank, "UniqueV2")


def unique(
    _o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array, axis: Array
) -> tuple[Array, Array]:
    """The different slices in order of appearance, and which of them each slice is."""
    at = _unique_axis(axis, x.ndim)
    slices = np.moveaxis(x, at, 0)
    ranks: dict[object, int] = {}
    rows = slices.reshape(len(slices), x.size // max(len(slices), 1)).tolist()
    index = [ranks.setdefault(tuple(row), len(ranks)) for row in rows]
    first = np.unique(index, return_index=True)[1]
    return np.moveaxis(slices[first], 0, at), np.array(index, outputs[1].dtype)


# ---- NoOp, CheckNumerics, Assert, Print, PrintV2


def no_op(_o: FlexOptions, _inputs: Specs, _outputs: Specs, *_arrays: Array) -> tuple[Array, ...]:
    return ()


def check_numerics(o: FlexCheckOptions, _inputs: Specs, _outputs: Specs, x: Array) -> tuple[Array]:
    found = [
        kind for kind, wrong in (("NaN", np.isnan(x)), ("infinity", np.isinf(x))) if wrong.any()
    ]
    if found:
        raise ValueError(f"{o.message}: the tensor has {' and '.join(found)}")
    return (x,)


def assert_(
    o: FlexCheckOptions, _inputs: Specs, _outputs: Specs, condition: Array, *data: Array
) -> tuple[Array, ...]:
    if not condition.all():
        raise ValueError(f"assertion failed: {_summary(o, data)}")
    return ()


def print_(
    o: FlexCheckOptions, _inputs: Specs, _outputs: Specs, x: Array, *data: Array
) -> tuple[Array]:
    sys.stderr.write(f"{o.message}{_summary(o, data)}\n")
    return (x,)


def print_text(o: FlexCheckOptions, _inputs: Specs, _outputs: Specs, x: Array) -> tuple[Array, ...]:
    sys.stderr.write(_text(x.reshape(-1)[0]) + o.end)
    return ()


def _summary(o: FlexCheckOptions, data: Sequence[Array]) -> str:
    return " ".join(f"[{_values(array.reshape(-1), o.summarize)}]" for array in data)


def _values(flat: Array, most: int) -> str:
    shown = flat if most < 0 else flat[:most]
    return " ".join(map(_text, shown)) + ("..." if len(shown) < len(flat) else "")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:g}" if isinstance(value, np.floating) else str(value)


KERNELS = named(
    {
        f"{FLEX}Assert": Kernel(assert_, nothing, Folds.NEVER, inferred_shapes=none_declared),
        f"{FLEX}CheckNumerics": Kernel(check_numerics, same_shape),
        f"{FLEX}HashTableV2": Kernel(hash_table, scalar),
        f"{FLEX}InitializeTableV2": Kernel(
            hashtable_import, nothing, calls=True, inferred_shapes=none_declared
        ),
        f"{FLEX}LookupTableFindV2": Kernel(hashtable_find, hashtable_find_shape, calls=True),
        f"{FLEX}LookupTableImportV2": Kernel(
            hashtable_import, nothing, calls=True, inferred_shapes=none_declared
        ),
        f"{FLEX}LookupTableSizeV2": Kernel(table_size, scalar, calls=True),
        f"{FLEX}NoOp": Kernel(no_op, nothing, Folds.NEVER, inferred_shapes=none_declared),
        f"{FLEX}ParseExample": Kernel(
            parse_example, undeclared_shapes, inferred_shapes=parse_example_shapes
        ),
        f"{FLEX}ParseExampleV2": Kernel(
            parse_example_v2, undeclared_shapes, inferred_shapes=parse_example_v2_shapes
        ),
        f"{FLEX}Print": Kernel(print_, same_shape, Folds.NEVER),
        f"{FLEX}PrintV2": Kernel(print_text, nothing, Folds.NEVER, inferred_shapes=none_declared),
        f"{FLEX}UniqueV2": Kernel(unique, unique_shape),
    }
)
