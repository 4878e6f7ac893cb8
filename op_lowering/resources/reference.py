"""Resource variables and hash tables, in the store that the interpreter keeps for a model.

Sources: kernels/var_handle.cc, read_variable.cc, assign_variable.cc, hashtable*.cc.
"""

import sys
import zlib
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.resources.options import HashtableOptions, VarHandleOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Infer, Kernel, Services

_HANDLE = DTYPES[TensorType.RESOURCE]


_NAMES: dict[int, tuple[str, ...]] = {}  # each handle of this process, and its resource


def handle(*name: str) -> Array:
    """The value of a RESOURCE tensor: one opaque number, equal in all processes."""
    number = zlib.crc32("/".join(name).encode())
    while _NAMES.setdefault(number, name) != name:  # another resource has this one
        number = (number + 1) % (1 << 32)
    return np.array([number], np.uint32).view(_HANDLE)


def handle_key(array: Array) -> tuple[str, bytes]:
    """The key of the handle's resource in the store."""
    return "resource", array.reshape(-1)[:1].tobytes()


def unassigned(key: Any) -> str:
    """The message about the variable of a handle's key."""
    *_, name = _NAMES.get(int.from_bytes(key[1], sys.byteorder), ("",))
    return (
        f"the variable {name!r} is read before anything was assigned to it: run the signature that "
        "assigns it first"
    )


def one_handle(_options: Options, _inputs: Specs) -> tuple[Shape | None, ...]:
    return ((1,),)


def var_handle(o: VarHandleOptions, _i: Specs, _o: Specs) -> tuple[Array]:
    return (handle("variable", o.container, o.shared_name),)


def read_variable_shape(_options: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """None if the host does not know the variable before the model runs."""
    return (inputs[1].shape if len(inputs) > 1 else None,)


def read_variable(
    call: Services, _options: Options, _i: Specs, _o: Specs, resource: Array, *_state: Array | None
) -> tuple[Array]:
    value = call.resources.get(handle_key(resource))
    if value is None:
        raise LookupError(unassigned(handle_key(resource)))
    return (np.asarray(value),)


def nothing(_options: Options, _inputs: Specs) -> tuple[Shape | None, ...]:
    return ()


def none_declared(
    _infer: Infer, _options: Options, _inputs: Specs, outputs: Specs
) -> tuple[Shape | None, ...]:
    if outputs:
        raise ValueError(f"it has no outputs, not {len(outputs)}")
    return ()


def assign_variable(
    call: Services,
    _options: Options,
    _i: Specs,
    _o: Specs,
    resource: Array,
    value: Array,
    *_state: Array | None,
) -> tuple[Array, ...]:
    call.resources[handle_key(resource)] = value.copy()
    return ()


def hashtable(o: HashtableOptions, _i: Specs, _o: Specs) -> tuple[Array]:
    return (handle("table", str(o.table_id)),)


def hashtable_import(
    call: Services,
    _options: Options,
    _i: Specs,
    _o: Specs,
    table: Array,
    keys: Array,
    values: Array,
) -> tuple[Array, ...]:
    """A filled table keeps its contents."""
    pairs = dict(zip(keys.reshape(-1).tolist(), values.reshape(-1).tolist(), strict=True))
    call.resources.setdefault(handle_key(table), pairs)
    return ()


def hashtable_find_shape(_options: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    return (inputs[1].shape,)


def hashtable_find(
    call: Services,
    _options: Options,
    _i: Specs,
    outputs: Specs,
    table: Array,
    keys: Array,
    default: Array,
) -> tuple[Array]:
    """Keys that the table lacks have the default."""
    pairs = _table(call, table)
    missing = default.reshape(-1)[0]
    values = np.empty(keys.size, outputs[0].dtype)
    for i, key in enumerate(keys.reshape(-1).tolist()):
        values[i] = pairs.get(key, missing)
    return (values.reshape(keys.shape),)


def hashtable_size(
    call: Services, _options: Options, _i: Specs, _o: Specs, table: Array
) -> tuple[Array]:
    """The result is int64 [1]."""
    return (np.array([len(_table(call, table))], np.int64),)


def _table(call: Services, table: Array) -> dict[object, object]:
    pairs: dict[object, object] | None = call.resources.get(handle_key(table))
    if pairs is None:
        raise LookupError("the hash table is used before anything was imported into it")
    return pairs


KERNELS = {
    "ASSIGN_VARIABLE": Kernel(
        assign_variable, nothing, calls=True, takes_handle=True, inferred_shapes=none_declared
    ),
    "HASHTABLE": Kernel(hashtable, one_handle),
    "HASHTABLE_FIND": Kernel(hashtable_find, hashtable_find_shape, calls=True),
    "HASHTABLE_IMPORT": Kernel(
        hashtable_import, nothing, calls=True, inferred_shapes=none_declared
    ),
    "HASHTABLE_SIZE": Kernel(hashtable_size, one_handle, calls=True),
    "READ_VARIABLE": Kernel(read_variable, read_variable_shape, calls=True, takes_handle=True),
    "VAR_HANDLE": Kernel(var_handle, one_handle),
}
