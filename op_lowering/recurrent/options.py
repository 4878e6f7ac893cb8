"""Options and records of RNN, SVDF and the LSTMs."""

import functools
import math

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, LSTMKernelType
from jaxdelegate.op_lowering.records.operator import sums_products, table
from jaxdelegate.op_lowering.records.record import Record
from jaxdelegate.op_lowering.spec import TensorSpec


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


def _cells(
    op: costs.Operation[RecurrentOptions], *, operations: int, activations: int, is_sequence: bool
) -> costs.Work:
    """Every weight matrix once per row and time step, and the cells' arithmetic."""
    rows = math.prod(op.inputs[0].shape[: 2 if is_sequence else 1])  # batch and time
    weights = _weights(op)
    products = sum(costs.n(w) for w in weights if len(w.shape) == 2)
    vectors = sum(costs.n(w) for w in weights if len(w.shape) == 1)
    results = op.outputs[: 1 if getattr(op.options, "merge_outputs", True) else 2]
    units = sum(spec.shape[-1] for spec in results)
    flops = rows * (2 * products + vectors + operations * units)
    note = "per run: all time steps" if is_sequence else ""
    return costs.Work(flops, rows * activations * units, note)


def _weights(op: costs.Operation[RecurrentOptions]) -> list[TensorSpec]:
    """Weights and biases: what is neither data nor a state."""
    o = op.options
    if isinstance(o, LSTMOptions) and o.kernel_type is LSTMKernelType.BASIC:
        return list(op.inputs[2:4])  # data, output, weights, bias, cell
    return [spec for spec in op.inputs[1:] if spec is not None and not spec.is_variable]


def _svdf(op: costs.Operation[SVDFOptions]) -> costs.Work:
    """Weights over features [filters, depth] and over time [filters, memory]."""
    batch = op.inputs[0].shape[0]
    return costs.Work(2 * batch * (costs.n(op.inputs[1]) + costs.n(op.inputs[2])))


_rnn_step, _rnn = (
    functools.partial(_cells, operations=1, activations=1, is_sequence=flag)
    for flag in (False, True)
)
_lstm_step, _lstm = (  # a cell has five activations, three products, one sum
    functools.partial(_cells, operations=9, activations=5, is_sequence=flag)
    for flag in (False, True)
)
_recurrent = functools.partial(sums_products, reads_uint8_as_int8=True)
RECORDS = table(
    _recurrent("BIDIRECTIONAL_SEQUENCE_LSTM", BidirectionalSequenceLSTMOptions, cost=_lstm),
    _recurrent("BIDIRECTIONAL_SEQUENCE_RNN", BidirectionalSequenceRNNOptions, cost=_rnn),
    _recurrent("LSTM", LSTMOptions, cost=_lstm_step),
    _recurrent("RNN", RNNOptions, cost=_rnn_step),
    _recurrent("SVDF", SVDFOptions, cost=_svdf),
    _recurrent("UNIDIRECTIONAL_SEQUENCE_LSTM", UnidirectionalSequenceLSTMOptions, cost=_lstm),
    _recurrent("UNIDIRECTIONAL_SEQUENCE_RNN", SequenceRNNOptions, cost=_rnn),
)
