"""Options and records of RNN, SVDF and the LSTMs."""

import functools

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, LSTMKernelType
from jaxdelegate.op_lowering.records.operator import OperatorRecord, Result, table
from jaxdelegate.op_lowering.records.record import Record


class SVDFOptions(Record):
    rank: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    asymmetric_quantize_inputs: bool = False


class RNNOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    asymmetric_quantize_inputs: bool = False


class LSTMOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    kernel_type: LSTMKernelType = LSTMKernelType.FULL
    asymmetric_quantize_inputs: bool = False


class SequenceRNNOptions(Record):
    """Options of UNIDIRECTIONAL_SEQUENCE_RNN."""

    time_major: bool = False
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    asymmetric_quantize_inputs: bool = False


class BidirectionalSequenceLSTMOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    merge_outputs: bool = False
    time_major: bool = True
    asymmetric_quantize_inputs: bool = False


class BidirectionalSequenceRNNOptions(Record):
    time_major: bool = False
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    merge_outputs: bool = False
    asymmetric_quantize_inputs: bool = False


class UnidirectionalSequenceLSTMOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    time_major: bool = False
    asymmetric_quantize_inputs: bool = False
    diagonal_recurrent_tensors: bool = False


RecurrentOptions = (
    SVDFOptions
    | RNNOptions
    | SequenceRNNOptions
    | BidirectionalSequenceRNNOptions
    | LSTMOptions
    | UnidirectionalSequenceLSTMOptions
    | BidirectionalSequenceLSTMOptions
)

_record = functools.partial(
    OperatorRecord, multiplies=True, result=Result.REDUCED, reads_uint8_as_int8=True
)
RECORDS = table(
    _record(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        BidirectionalSequenceLSTMOptions,
        cost=costs.lstm,
        struct={
            "fused_activation_function": c.ACTIVATION,
            "cell_clip": c.FLOAT,
            "proj_clip": c.FLOAT,
            "merge_outputs": c.BOOL,
            "time_major": c.BOOL,
            "asymmetric_quantize_inputs": c.BOOL,
        },
    ),
    _record(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        BidirectionalSequenceRNNOptions,
        cost=costs.rnn,
        struct={
            "time_major": c.BOOL,
            "fused_activation_function": c.ACTIVATION,
            "merge_outputs": c.BOOL,
            "asymmetric_quantize_inputs": c.BOOL,
        },
    ),
    _record(
        "LSTM",
        LSTMOptions,
        cost=costs.lstm_step,
        struct={
            "fused_activation_function": c.ACTIVATION,
            "cell_clip": c.FLOAT,
            "proj_clip": c.FLOAT,
            "kernel_type": c.same(LSTMKernelType),
            "asymmetric_quantize_inputs": c.BOOL,
        },
    ),
    _record(
        "RNN",
        RNNOptions,
        cost=costs.rnn_step,
        struct={"fused_activation_function": c.ACTIVATION, "asymmetric_quantize_inputs": c.BOOL},
    ),
    _record(
        "SVDF",
        SVDFOptions,
        cost=costs.svdf,
        struct={
            "rank": c.INT,
            "fused_activation_function": c.ACTIVATION,
            "asymmetric_quantize_inputs": c.BOOL,
        },
    ),
    _record(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        UnidirectionalSequenceLSTMOptions,
        cost=costs.lstm,
        struct={
            "fused_activation_function": c.ACTIVATION,
            "cell_clip": c.FLOAT,
            "proj_clip": c.FLOAT,
            "time_major": c.BOOL,
            "asymmetric_quantize_inputs": c.BOOL,
            "diagonal_recurrent_tensors": c.BOOL,
        },
    ),
    _record(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        SequenceRNNOptions,
        cost=costs.rnn,
        struct={
            "time_major": c.BOOL,
            "fused_activation_function": c.ACTIVATION,
            "asymmetric_quantize_inputs": c.BOOL,
        },
    ),
)
