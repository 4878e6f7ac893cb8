"""Operator parameters in memory: the structs of builtin_op_data.h, as data, and their one decoder.

Stock interpreters parse a file's options tables into C structs. Here each struct is the list of its
members in C's order; a member's name is that of the field of our Options dataclass it fills, its
kind says which C members hold it and how they are read. Structs only ever grow at their end; every
member here is there in the oldest interpreter that `structures.check_host` lets pass.
"""

import ctypes
import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    CombinerType,
    FullyConnectedOptionsWeightsFormat,
    LSHProjectionType,
    LSTMKernelType,
    MirrorPadMode,
    Options,
    Padding,
    ReduceWindowFunction,
    RngAlgorithm,
    TensorType,
    options_class,
)

# TfLiteType -> TensorType. 0, kTfLiteNoType, stands where the file has no options table.
TENSOR_TYPES: dict[int, TensorType] = {
    1: TensorType.FLOAT32,
    2: TensorType.INT32,
    3: TensorType.UINT8,
    4: TensorType.INT64,
    5: TensorType.STRING,
    6: TensorType.BOOL,
    7: TensorType.INT16,
    8: TensorType.COMPLEX64,
    9: TensorType.INT8,
    10: TensorType.FLOAT16,
    11: TensorType.FLOAT64,
    12: TensorType.COMPLEX128,
    13: TensorType.UINT64,
    14: TensorType.RESOURCE,
    15: TensorType.VARIANT,
    16: TensorType.UINT32,
    17: TensorType.UINT16,
    18: TensorType.INT4,
    19: TensorType.BFLOAT16,
    20: TensorType.INT2,
    21: TensorType.UINT4,
    22: TensorType.FLOAT8_E4M3FN,
    23: TensorType.FLOAT8_E5M2,
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a parameter lies in memory.

    Attributes:
        ctypes: of the consecutive C members that hold it.
        read: their values and the rank of the operator's first input -> the parameter; None: it was
            not set.
    """

    ctypes: tuple[Any, ...]
    read: Callable[[list[Any], int], Any]


def _plain(ctype: Any) -> Kind:
    return Kind((ctype,), lambda values, _rank: values[0])


def _enumeration(table: Mapping[int, enum.IntEnum]) -> Kind:
    """C's numbers -> ours; a 0 that the table lacks means that nothing was set."""
    absent = {} if 0 in table else {0: None}
    known = {**table, **absent}
    return Kind((ctypes.c_int,), lambda values, _rank: known[values[0]])


def _same(names: type[enum.IntEnum]) -> Kind:
    """An enumeration with the schema's numbers."""
    return _enumeration({int(name): name for name in names})


def _after_unknown(names: type[enum.IntEnum]) -> Kind:
    """An enumeration that begins with an "unknown" of its own."""
    return _enumeration({name + 1: name for name in names})


def _counted(ctype: Any, most: int) -> Kind:
    """An array of fixed size, then the number of elements in use."""
    return Kind((ctype * most, ctypes.c_int), lambda values, _rank: tuple(values[0][: values[1]]))


def _by_rank(most: int, each: int = 1) -> Kind:
    """An int64 array of fixed size, of which `each` elements per dimension are in use."""
    return Kind((ctypes.c_int64 * most,), lambda values, rank: tuple(values[0][: each * rank]))


def _floats(values: list[Any], _rank: int) -> tuple[float, ...]:
    return tuple(values[1][: values[0]])


def _text(values: list[Any], _rank: int) -> str:
    return (values[0] or b"").decode(errors="replace")


def _bytes(values: list[Any], _rank: int) -> bytes:
    return ctypes.string_at(*values) if values[0] else b""


_INT, _FLOAT, _BOOL = _plain(ctypes.c_int), _plain(ctypes.c_float), _plain(ctypes.c_bool)
_INT64 = _plain(ctypes.c_int64)
_TEXT = Kind((ctypes.c_char_p,), _text)
_TYPE = _enumeration(TENSOR_TYPES)
_ACTIVATION = _same(ActivationFunctionType)
_PADDING = _after_unknown(Padding)
_INDICES = _counted(ctypes.c_int64, 8)

Layout = dict[str, Kind]

_ACTIVATED: Layout = {"fused_activation_function": _ACTIVATION}
_ADDED: Layout = {**_ACTIVATED, "pot_scale_int16": _BOOL}
_CONV_3D: Layout = {
    "padding": _PADDING,
    "stride_w": _INT,
    "stride_h": _INT,
    "stride_d": _INT,
    "dilation_w_factor": _INT,
    "dilation_h_factor": _INT,
    "dilation_d_factor": _INT,
    "fused_activation_function": _ACTIVATION,
}
_POOL: Layout = {
    "padding": _PADDING,
    "stride_w": _INT,
    "stride_h": _INT,
    "filter_width": _INT,
    "filter_height": _INT,
    "fused_activation_function": _ACTIVATION,
}
_RANDOM: Layout = {"seed": _INT, "seed2": _INT}
_REDUCER: Layout = {"keep_dims": _BOOL}
_RESIZE: Layout = {"align_corners": _BOOL, "half_pixel_centers": _BOOL}
_SPLIT: Layout = {"num_splits": _INT}

LAYOUTS: dict[str, Layout] = {
    "ADD": _ADDED,
    "ARG_MAX": {"output_type": _TYPE},
    "ARG_MIN": {"output_type": _TYPE},
    "AVERAGE_POOL_2D": _POOL,
    "BATCH_MATMUL": {"adj_x": _BOOL, "adj_y": _BOOL, "asymmetric_quantize_inputs": _BOOL},
    "BIDIRECTIONAL_SEQUENCE_LSTM": {
        "fused_activation_function": _ACTIVATION,
        "cell_clip": _FLOAT,
        "proj_clip": _FLOAT,
        "merge_outputs": _BOOL,
        "time_major": _BOOL,
        "asymmetric_quantize_inputs": _BOOL,
    },
    "BIDIRECTIONAL_SEQUENCE_RNN": {
        "time_major": _BOOL,
        "fused_activation_function": _ACTIVATION,
        "merge_outputs": _BOOL,
        "asymmetric_quantize_inputs": _BOOL,
    },
    "BUCKETIZE": {
        "boundaries": Kind((ctypes.c_int, ctypes.POINTER(ctypes.c_float)), _floats),
    },
    "CALL_ONCE": {"init_subgraph_index": _INT},
    "CAST": {"in_data_type": _TYPE, "out_data_type": _TYPE},
    "CONCATENATION": {"axis": _INT, "fused_activation_function": _ACTIVATION},
    "CONV_2D": {
        "padding": _PADDING,
        "stride_w": _INT,
        "stride_h": _INT,
        "fused_activation_function": _ACTIVATION,
        "dilation_w_factor": _INT,
        "dilation_h_factor": _INT,
        "quantized_bias_type": _TYPE,
    },
    "CONV_3D": _CONV_3D,
    "CONV_3D_TRANSPOSE": _CONV_3D,
    "CUMSUM": {"exclusive": _BOOL, "reverse": _BOOL},
    "DEPTHWISE_CONV_2D": {
        "padding": _PADDING,
        "stride_w": _INT,
        "stride_h": _INT,
        "depth_multiplier": _INT,
        "fused_activation_function": _ACTIVATION,
        "dilation_w_factor": _INT,
        "dilation_h_factor": _INT,
    },
    "DEPTH_TO_SPACE": {"block_size": _INT},
    "DIV": _ACTIVATED,
    "EMBEDDING_LOOKUP_SPARSE": {"combiner": _same(CombinerType)},
    "FAKE_QUANT": {"min": _FLOAT, "max": _FLOAT, "num_bits": _INT, "narrow_range": _BOOL},
    "FULLY_CONNECTED": {
        "fused_activation_function": _ACTIVATION,
        "weights_format": _same(FullyConnectedOptionsWeightsFormat),
        "keep_num_dims": _BOOL,
        "asymmetric_quantize_inputs": _BOOL,
        "quantized_bias_type": _TYPE,
    },
    "GATHER": {"axis": _INT, "batch_dims": _INT},
    "GELU": {"approximate": _BOOL},
    "HASHTABLE": {"table_id": _INT, "key_dtype": _TYPE, "value_dtype": _TYPE},
    "IF": {"then_subgraph_index": _INT, "else_subgraph_index": _INT},
    "L2_NORMALIZATION": _ACTIVATED,
    "L2_POOL_2D": _POOL,
    "LEAKY_RELU": {"alpha": _FLOAT},
    "LOCAL_RESPONSE_NORMALIZATION": {
        "radius": _INT,
        "bias": _FLOAT,
        "alpha": _FLOAT,
        "beta": _FLOAT,
    },
    "LSH_PROJECTION": {"type": _same(LSHProjectionType)},
    "LSTM": {
        "fused_activation_function": _ACTIVATION,
        "cell_clip": _FLOAT,
        "proj_clip": _FLOAT,
        "kernel_type": _same(LSTMKernelType),
        "asymmetric_quantize_inputs": _BOOL,
    },
    "MAX_POOL_2D": _POOL,
    "MEAN": _REDUCER,
    "MIRROR_PAD": {"mode": _after_unknown(MirrorPadMode)},
    "MUL": _ACTIVATED,
    "MULTINOMIAL": _RANDOM,
    "ONE_HOT": {"axis": _INT},
    "PACK": {"values_count": _INT, "axis": _INT},
    "RANDOM_STANDARD_NORMAL": _RANDOM,
    "RANDOM_UNIFORM": _RANDOM,
    "REDUCE_ALL": _REDUCER,
    "REDUCE_ANY": _REDUCER,
    "REDUCE_MAX": _REDUCER,
    "REDUCE_MIN": _REDUCER,
    "REDUCE_PROD": _REDUCER,
    "REDUCE_WINDOW": {"reduce_function": _same(ReduceWindowFunction)},
    "RESHAPE": {"new_shape": _counted(ctypes.c_int32, 8)},
    "RESIZE_BILINEAR": _RESIZE,
    "RESIZE_NEAREST_NEIGHBOR": _RESIZE,
    "REVERSE_SEQUENCE": {"seq_dim": _INT, "batch_dim": _INT},
    "RNN": {"fused_activation_function": _ACTIVATION, "asymmetric_quantize_inputs": _BOOL},
    "SHAPE": {"out_type": _TYPE},
    "SKIP_GRAM": {"ngram_size": _INT, "max_skip_size": _INT, "include_all_ngrams": _BOOL},
    "SOFTMAX": {"beta": _FLOAT},
    "SPACE_TO_DEPTH": {"block_size": _INT},
    "SPARSE_TO_DENSE": {"validate_indices": _BOOL},
    "SPLIT": _SPLIT,
    "SPLIT_V": _SPLIT,
    "SQUEEZE": {"squeeze_dims": _counted(ctypes.c_int32, 8)},
    "STABLEHLO_CASE": {"branch_subgraph_indices": _counted(ctypes.c_int32, 20)},
    "STABLEHLO_COMPOSITE": {
        "name": _TEXT,
        "decomposition_subgraph_index": _INT,
        "version": _INT,
        "composite_attributes": Kind((ctypes.c_void_p, ctypes.c_size_t), _bytes),
    },
    "STABLEHLO_GATHER": {
        "offset_dims": _INDICES,
        "collapsed_slice_dims": _INDICES,
        "start_index_map": _INDICES,
        "index_vector_dim": _INT64,
        "slice_sizes": _INDICES,
        "indices_are_sorted": _BOOL,
    },
    "STABLEHLO_PAD": {
        "edge_padding_low": _by_rank(8),
        "edge_padding_high": _by_rank(8),
        "interior_padding": _by_rank(8),
    },
    "STABLEHLO_REDUCE_WINDOW": {
        "window_dimensions": _by_rank(8),
        "window_strides": _by_rank(8),
        "base_dilations": _by_rank(8),
        "window_dilations": _by_rank(8),
        "padding": _by_rank(16, each=2),
        "body_subgraph_index": _INT,
    },
    "STABLEHLO_RNG_BIT_GENERATOR": {"algorithm": _after_unknown(RngAlgorithm)},
    "STABLEHLO_SCATTER": {
        "indices_are_sorted": _BOOL,
        "update_window_dims": _INDICES,
        "inserted_window_dims": _INDICES,
        "scatter_dims_to_operand_dims": _INDICES,
        "index_vector_dim": _INT64,
        "unique_indices": _BOOL,
        "update_computation_subgraph_index": _INT,
    },
    "STRIDED_SLICE": {
        "begin_mask": _INT,
        "end_mask": _INT,
        "ellipsis_mask": _INT,
        "new_axis_mask": _INT,
        "shrink_axis_mask": _INT,
        "offset": _BOOL,
    },
    "SUB": _ADDED,
    "SUM": _REDUCER,
    "SVDF": {
        "rank": _INT,
        "fused_activation_function": _ACTIVATION,
        "asymmetric_quantize_inputs": _BOOL,
    },
    "TRANSPOSE_CONV": {
        "padding": _PADDING,
        "stride_w": _INT,
        "stride_h": _INT,
        "fused_activation_function": _ACTIVATION,
        "quantized_bias_type": _TYPE,
    },
    "UNIDIRECTIONAL_SEQUENCE_LSTM": {
        "fused_activation_function": _ACTIVATION,
        "cell_clip": _FLOAT,
        "proj_clip": _FLOAT,
        "time_major": _BOOL,
        "asymmetric_quantize_inputs": _BOOL,
        "diagonal_recurrent_tensors": _BOOL,
    },
    "UNIDIRECTIONAL_SEQUENCE_RNN": {
        "time_major": _BOOL,
        "fused_activation_function": _ACTIVATION,
        "asymmetric_quantize_inputs": _BOOL,
    },
    "UNIQUE": {"idx_out_type": _TYPE},
    "UNPACK": {"num": _INT, "axis": _INT},
    "VAR_HANDLE": {"container": _TEXT, "shared_name": _TEXT},
    "WHILE": {"cond_subgraph_index": _INT, "body_subgraph_index": _INT},
}

# What schema.fbs has and the structs lack: these fields keep their defaults.
LOST: dict[str, tuple[str, ...]] = {
    "FULLY_CONNECTED": ("quant_spec",),
    "STABLEHLO_COMPOSITE": ("composite_attributes_format",),
}


def decode(operator: str, address: int | None, rank: int = 0) -> Options:
    """A builtin operator's options out of `node->builtin_data`; nothing keeps pointing there.

    Args:
        operator: the BuiltinOperator's name.
        address: of the struct; None: the interpreter has none.
        rank: of the first input, for lists whose length is not stored.

    Raises:
        ValueError: the interpreter does not keep these options, or a number means nothing to us.
    """
    cls = options_class(operator)
    if operator not in LAYOUTS or not address:
        if dataclasses.fields(cls):
            raise ValueError(f"stock interpreters do not hand out the options of {operator}")
        return cls()
    fields = {}
    members = _members(operator)
    struct = members.struct.from_address(address)
    for name, kind, at in members.fields:
        values = [getattr(struct, f"m{i}") for i in at]
        try:
            value = kind.read(values, rank)
        except KeyError:
            raise ValueError(f"{operator}.{name}: {values[0]} means nothing known") from None
        if value is not None:
            fields[name] = value
    return cls(**fields)


@dataclasses.dataclass(frozen=True)
class _Members:
    """A struct, and for each field its kind and the numbers of its members, m0, m1..."""

    struct: type[ctypes.Structure]
    fields: tuple[tuple[str, Kind, range], ...]


@functools.cache
def _members(operator: str) -> _Members:
    layout = LAYOUTS[operator]
    members: list[Any] = []
    fields = []
    for name, kind in layout.items():
        fields.append((name, kind, range(len(members), len(members) + len(kind.ctypes))))
        members += kind.ctypes
    names = {"_fields_": [(f"m{i}", ctype) for i, ctype in enumerate(members)]}
    return _Members(type(operator, (ctypes.Structure,), names), tuple(fields))
