"""Checkpoints of on-device training: Save and Restore.

Sources: core/kernels/{save_restore_tensor}.cc, core/util/{tensor_slice_writer,
saved_tensor_slice_util}.cc and saved_tensor_slice.proto. A checkpoint is a table: under the empty
key the name, shape and type of each tensor, and under a key for each tensor its values. Its
messages are written with the fields in TensorFlow's order: the files are equal byte for byte.
"""

import os

import numpy as np

from jaxdelegate.op_lowering.flex import reference_tables
from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.flex.reference_movement import sizes_of
from jaxdelegate.op_lowering.flex.reference_tables import encoded
from jaxdelegate.op_lowering.records.flex import DATA_TYPES, FlexOptions
from jaxdelegate.op_lowering.resources.reference import none_declared, nothing
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Folds, Kernel, ResultShapes, Services
from jaxdelegate.wire import Message

_META, _DATA = 1, 2  # fields of SavedTensorSlices
_NAME, _SHAPE, _TYPE, _SLICE = 1, 2, 3, 4  # fields of SavedSliceMeta
_VERSION = b"\x12\x02\x08\x01"  # the format's: 1
# The field of TensorProto that holds the values of a dtype, and how they are stored: as they are,
# or as varints of an integer type.
_AS_THEY_ARE = {"<f4": 5, "<f8": 6, "<c8": 9, "<c16": 12}
_AS_VARINTS = {
    **dict.fromkeys(("<i4", "|i1", "<i2", "|u1", "<u2"), 7),
    "<i8": 10,
    "|b1": 11,
    "<f2": 13,
    "<u4": 16,
    "<u8": 17,
}


def save(
    call: Services,
    _o: FlexOptions,
    _i: Specs,
    _o_specs: Specs,
    path: Array,
    names: Array,
    *data: Array,
) -> tuple[Array, ...]:
    """Write a file of the tensors, first under another name: an old one is there until then."""
    file = _allowed(call, path)
    tensors = dict(zip(map(_text, names.reshape(-1)), data, strict=True))
    if len(tensors) != len(data):
        raise ValueError(f"FlexSave: two tensors have one name among {sorted(tensors)}")
    entries = {_key(name, a.ndim): _data(name, a) for name, a in tensors.items()}
    entries[b""] = _meta(tensors)
    temporary = f"{file}.tempstate{os.getpid()}"
    try:
        with open(temporary, "xb") as out:
            reference_tables.write(out, entries)
        os.replace(temporary, file)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise
    return ()


def restored_shape(_o: FlexOptions, _inputs: Specs) -> ResultShapes:
    return (None,)


def restore(
    call: Services, _o: FlexOptions, _i: Specs, outputs: Specs, path: Array, name: Array
) -> tuple[Array]:
    """Read one tensor of a file."""
    file, wanted, dtype = _allowed(call, path), _text(name.reshape(-1)[0]), outputs[0].dtype
    if os.path.exists(file) and not os.path.isfile(file):
        raise ValueError(f"FlexRestore: {file!r} is not a file: expected what FlexSave wrote")
    try:
        with open(file, "rb") as table:
            meta = reference_tables.find(table, b"") or b""
            shape = _stored_shape(meta, wanted, dtype)
            data = reference_tables.find(table, _key(wanted, len(shape)))
    except ValueError as error:
        raise ValueError(f"FlexRestore: {file!r}: {error}") from error
    if data is None:
        raise ValueError(
            f"FlexRestore: {file!r}: {wanted!r} is stored in parts, which are not supported"
        )
    return (_values(Message(data).message(_DATA).message(3), dtype).reshape(shape),)


def _allowed(call: Services, path: Array) -> str:
    """A file's path, if the program chose it: a model must not choose files."""
    file = path.reshape(-1)[0] if path.size == 1 else b""
    if file not in call.paths.values():
        raise PermissionError(
            f"the model must not choose the file {_text(file)!r}: files are opened only by paths "
            "that set_tensor or a signature runner of jaxdelegate.Interpreter gave to an input"
        )
    return os.fsdecode(file)


def _text(string: bytes) -> str:
    return string.decode(errors="surrogateescape")


def _message(number: int, content: bytes) -> bytes:
    return encoded(number << 3 | 2, len(content)) + content


def _whole(rank: int) -> bytes:
    """TensorSliceProto of a whole tensor: an empty extent for each dimension."""
    return _message(1, b"") * rank


def _key(name: str, rank: int) -> bytes:
    """OrderedCode: 0, the name, its rank, and for each dimension 0 and -1, the whole of it."""
    escaped = name.encode(errors="surrogateescape")
    escaped = escaped.replace(b"\xff", b"\xff\x00").replace(b"\x00", b"\x00\xff")
    return (
        b"\0" + escaped + b"\0\1" + (b"\1" + bytes([rank]) if rank else b"\0") + b"\x80\x7f" * rank
    )


def _meta(tensors: dict[str, Array]) -> bytes:
    described = b""
    for name, array in sorted(tensors.items()):
        sizes = (encoded(1 << 3, n) if n else b"" for n in array.shape)
        shape = b"".join(_message(2, size) for size in sizes)
        number = next(n for n, dtype in DATA_TYPES.items() if np.dtype(dtype) == array.dtype)
        described += _message(
            1,
            _message(_NAME, name.encode(errors="surrogateescape"))
            + _message(_SHAPE, shape)
            + encoded(_TYPE << 3, number)
            + _message(_SLICE, _whole(array.ndim)),
        )
    return _message(_META, described + _VERSION)


def _data(name: str, array: Array) -> bytes:
    parts = (
        _message(1, name.encode(errors="surrogateescape")),
        _message(2, _whole(array.ndim)),
        _message(3, _tensor(name, array)),
    )
    return _message(_DATA, b"".join(parts))


def _tensor(name: str, array: Array) -> bytes:
    """TensorProto, values only."""
    kind = array.dtype.str
    if array.dtype.hasobject:
        return b"".join(_message(8, string) for string in array.reshape(-1))
    if kind in _AS_THEY_ARE:
        content, number = array.tobytes(), _AS_THEY_ARE[kind]
    elif kind in _AS_VARINTS:
        stored = array.view(np.uint16) if kind == "<f2" else array
        content, number = encoded(*stored.reshape(-1).tolist()), _AS_VARINTS[kind]
    else:
        raise TypeError(f"FlexSave: {name!r} is {array.dtype}, which a checkpoint cannot hold")
    return _message(number, content) if content else b""


def _stored_shape(meta: bytes, name: str, dtype: np.dtype) -> Shape:
    there = []
    for tensor in Message(meta).message(_META).messages(1):
        there.append(_text(bytes(tensor.data(_NAME))))
        if there[-1] != name:
            continue
        stored = np.dtype(DATA_TYPES.get(tensor.integer(_TYPE), "V1"))
        if stored != dtype:
            raise ValueError(f"{name!r} is {stored} in it, and {dtype} in the model")
        return sizes_of(tensor.message(_SHAPE))
    raise ValueError(f"it has not {name!r}, but {', '.join(map(repr, there)) or 'nothing'}")


def _values(tensor: Message, dtype: np.dtype) -> Array:
    if dtype.hasobject:
        return np.array([*map(bytes, tensor.all_data(8)), None], object)[:-1]
    if dtype.str in _AS_THEY_ARE:
        return np.frombuffer(b"".join(tensor.all_data(_AS_THEY_ARE[dtype.str])), dtype).copy()
    if dtype.str not in _AS_VARINTS:
        raise TypeError(f"FlexRestore: {dtype}, which a checkpoint cannot hold")
    numbers = tensor.integers(_AS_VARINTS[dtype.str])
    if dtype == np.float16:
        return np.array(numbers, np.uint16).view(np.float16)
    return np.array(numbers, np.int64).astype(dtype)


KERNELS = kernels(
    {
        "Restore": Kernel(restore, restored_shape, Folds.NEVER, calls=True),
        "Save": Kernel(save, nothing, Folds.NEVER, calls=True, inferred_shapes=none_declared),
    }
)
