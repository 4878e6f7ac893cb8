"""Options and records of FULLY_CONNECTED and BATCH_MATMUL."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import (
    ActivationFunctionType,
    FullyConnectedOptionsWeightsFormat,
    TensorType,
)
from jaxdelegate.op_lowering.records.operator import Batch, OperatorRecord, Result, Scales, table
from jaxdelegate.op_lowering.records.record import Options, Record
from jaxdelegate.op_lowering.spec import Specs


class FullyConnectedOptions(Record):
    """Table `FullyConnectedOptions`: FULLY_CONNECTED."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    weights_format: FullyConnectedOptionsWeightsFormat = FullyConnectedOptionsWeightsFormat.DEFAULT
    keep_num_dims: bool = False
    asymmetric_quantize_inputs: bool = False
    quantized_bias_type: TensorType = TensorType.FLOAT32
    quant_spec: bytes = b""  # opaque; stock delegates refuse an operator that has it


class BatchMatMulOptions(Record):
    """Table `BatchMatMulOptions`: BATCH_MATMUL."""

    adj_x: bool = False
    adj_y: bool = False
    asymmetric_quantize_inputs: bool = False


def matrix_channels(_options: Options, inputs: Specs, _outputs: Specs) -> tuple[int, int]:
    """Weights [N, input channels]."""
    output_channels, input_channels = inputs[1].shape
    return input_channels, output_channels


def batch_matmul_channels(
    options: BatchMatMulOptions, inputs: Specs, outputs: Specs
) -> tuple[int, int]:
    """Matrices, perhaps transposed."""
    return inputs[0].shape[-2 if options.adj_x else -1], outputs[0].shape[-1]


RECORDS = table(
    OperatorRecord(
        "BATCH_MATMUL",
        BatchMatMulOptions,
        cost=costs.batch_matmul,
        struct={"adj_x": c.BOOL, "adj_y": c.BOOL, "asymmetric_quantize_inputs": c.BOOL},
        multiplies=True,
        result=Result.REDUCED,
        batch=Batch.MATRICES,
        channels=batch_matmul_channels,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "FULLY_CONNECTED",
        FullyConnectedOptions,
        cost=costs.fully_connected,
        struct={
            "fused_activation_function": c.ACTIVATION,
            "weights_format": c.same(FullyConnectedOptionsWeightsFormat),
            "keep_num_dims": c.BOOL,
            "asymmetric_quantize_inputs": c.BOOL,
            "quantized_bias_type": c.TYPE,
        },
        multiplies=True,
        result=Result.REDUCED,
        batch=Batch.ROWS,
        reads_uint8_as_int8=True,
        channels=matrix_channels,
        scales=Scales.FREE,
        bias=(0, 1, 2),
    ),
)
