"""Trained parameters back into a .tflite, and its int8 version."""

import os
from collections.abc import Mapping, Sequence

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema


def with_parameters(content: bytes, params: Mapping[str, np.ndarray]) -> bytes:
    """The file with other weights: those that `model.function()` names, in the same layout.

    Raises:
        KeyError: the file has no tensor of that name.
    """
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    tensors = {t.name.decode(): t for subgraph in model.subgraphs for t in subgraph.tensors}
    for name, value in params.items():
        data = np.ascontiguousarray(value, np.float32).tobytes()
        model.buffers[tensors[name].buffer].data = np.frombuffer(data, np.uint8)
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def quantized(content: bytes, inputs: Sequence[np.ndarray]) -> bytes:
    """Weights and activations in int8, by ai-edge-quantizer; inputs and outputs stay float32.

    Args:
        content: a float network with the signature `serving_default` and the input `image`.
        inputs: images to calibrate the scales of activations with.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from ai_edge_quantizer import algorithm_manager, qtyping, quantizer, recipe  # noqa: PLC0415

    q = quantizer.Quantizer(bytearray(content))
    q.load_quantization_recipe(recipe.static_wi8_ai8())
    for end in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
        left_alone = algorithm_manager.AlgorithmName.NO_QUANTIZE
        q.update_quantization_recipe(regex=".*", operation_name=end, algorithm_key=left_alone)
    observed = q.calibrate({"serving_default": [{"image": x} for x in inputs]}, num_threads=1)
    return bytes(q.quantize(observed).quantized_model)
