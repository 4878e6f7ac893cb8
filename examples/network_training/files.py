"""Writes trained parameters into a .tflite, and quantizes it to int8."""

import contextlib
import io
from collections.abc import Mapping, Sequence

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

Range = dict[str, dict[str, np.ndarray]]  # `min` and `max` of each tensor


def with_parameters(content: bytes, params: Mapping[str, np.ndarray]) -> bytes:
    """The file with new weights, named and laid out as in `model.function()`.

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
    """Weights and activations in int8, by litert-quantizer; inputs and outputs stay float32.

    Args:
        content: a float network with the signature `serving_default` and the input `image`.
        inputs: images to calibrate the scales of activations with.
    """
    from litert_quantizer import algorithm_manager, qtyping, quantizer, recipe  # noqa: PLC0415

    q = quantizer.Quantizer(bytearray(content))
    q.load_quantization_recipe(recipe.static_wi8_ai8())
    for end in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
        left_alone = algorithm_manager.AlgorithmName.NO_QUANTIZE
        q.update_quantization_recipe(regex=".*", operation_name=end, algorithm_key=left_alone)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        ranges = [q.calibrate(_sample(x), num_threads=1) for x in inputs]  # one after the other
        return bytes(q.quantize(_widest(ranges)).quantized_model)


def _sample(x: np.ndarray) -> dict[str, list[dict[str, np.ndarray]]]:
    return {"serving_default": [{"image": x}]}


def _widest(ranges: Sequence[Range]) -> Range:
    """The least and largest values of each tensor.

    litert-quantizer averages those of the samples that it is given together: values of pictures
    with more contrast than the average would be cut off.
    """
    return {
        name: {
            "min": np.min([of[name]["min"] for of in ranges], axis=0),
            "max": np.max([of[name]["max"] for of in ranges], axis=0),
        }
        for name in ranges[0]
        if "min" in ranges[0][name]
    }
