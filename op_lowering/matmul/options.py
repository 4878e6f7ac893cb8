"""Options and records of FULLY_CONNECTED and BATCH_MATMUL."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import (
    ActivationFunctionType,
    FullyConnectedOptionsWeightsFormat,
    TensorType,
)
from jaxdelegate.op_lowering.records.operator import FREE, Batch, Product, sums_products, table
from jaxdelegate.op_lowering.records.record import Options, Record
from jaxdelegate.op_lowering.spec import Specs


class FullyConnectedOptions(Record):
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    weights_format: FullyConnectedOptionsWeightsFormat = FullyConnectedOptionsWeightsFormat.DEFAULT
    keep_num_dims: bool = False
    asymmetric_quantize_inputs: bool = False
    quantized_bias_type: TensorType = TensorType.FLOAT32
    quant_spec: bytes = b""  # opaque; stock delegates refuse an operator that has it


class BatchMatMulOptions(Record):
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
    sums_products(
        "BATCH_MATMUL",
        BatchMatMulOptions,
        cost=costs.batch_matmul,
        batch=Batch.MATRICES,
        product=Product(batch_matmul_channels),
        scales=FREE,
    ),
    sums_products(
        "FULLY_CONNECTED",
        FullyConnectedOptions,
        cost=costs.fully_connected,
        struct=c.members(
            FullyConnectedOptions,
            *("fused_activation_function", "weights_format", "keep_num_dims"),
            *("asymmetric_quantize_inputs", "quantized_bias_type"),
        ),
        batch=Batch.ROWS,
        reads_uint8_as_int8=True,
        product=Product(matrix_channels, bias=(0, 1, 2)),
        scales=FREE,
    ),
)
