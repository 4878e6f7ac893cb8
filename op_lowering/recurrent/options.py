"""Options and records of RNN, SVDF and the LSTMs."""

import functools

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, LSTMKernelType
from jaxdelegate.op_lowering.records.operator import (
    sums_products,
    table,
)
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

_recurrent = functools.partial(sums_products, reads_uint8_as_int8=True)
RECORDS = table(
    _recurrent("BIDIRECTIONAL_SEQUENCE_LSTM", BidirectionalSequenceLSTMOptions, cost=costs.lstm),
    _recurrent("BIDIRECTIONAL_SEQUENCE_RNN", BidirectionalSequenceRNNOptions, cost=costs.rnn),
    _recurrent("LSTM", LSTMOptions, cost=costs.lstm_step),
    _recurrent("RNN", RNNOptions, cost=costs.rnn_step),
    _recurrent("SVDF", SVDFOptions, cost=costs.svdf),
    _recurrent("UNIDIRECTIONAL_SEQUENCE_LSTM", UnidirectionalSequenceLSTMOptions, cost=costs.lstm),
    _recurrent("UNIDIRECTIONAL_SEQUENCE_RNN", SequenceRNNOptions, cost=costs.rnn),
)
