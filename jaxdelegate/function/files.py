"""Reads and writes .tflite files for use from JAX: `jaxdelegate.load` and `jaxdelegate.save`."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.function.arguments import check_saved
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.model import CallableModel
from jaxdelegate.function.records import Params
from jaxdelegate.function.saving.saving import FileIo
from jaxdelegate.function.sharding.model import ShardedModel
from jaxdelegate.function.views import whole
from jaxdelegate.model.open_models import open_model
from jaxdelegate.options import DelegateOptions
from jaxdelegate.passes.limits import Limits
from jaxdelegate.text import printable


def load(
    source: Any,
    options: Mapping[str, Any] | DelegateOptions | None = None,
    *,
    max_tensor_bytes: int | None = None,
    max_host_memory: int | None = None,
    **more: Any,
) -> CallableModel:
    """Read a .tflite for use from JAX.

    Args:
        source: a path, or the file's content as bytes. The path may name a model in a bundle:
            `gemma.litertlm!prefill_decode`.
        options: options of JaxDelegate about the computation: platform, quant_mode, compute_dtype
            and so on. Those about partitions and the cache do not apply here. The
            quant_mode 'auto' is 'float_view' here: only floats have gradients.
        **more: single options, which override `options`.
        max_tensor_bytes: the largest size of a tensor. Larger ones are an error before anything is
            allocated, since a damaged file may declare any shape. None: 2 GiB.
        max_host_memory: the largest total size, in bytes, of the tensors that are live at the same
            time on a CPU, operator by operator (XLA may need less). None: four fifths of the
            machine's memory, or of its control group's limit.

    Raises:
        ModelError: the file cannot be opened or is damaged.
        OptionError: an option is unknown, has an invalid value, or does not apply here.
    """
    limits = Limits.of(max_tensor_bytes, max_host_memory)
    view = whole(options, limits, **more)
    graph = open_model(source)
    if not graph.subgraphs:
        raise ModelError(
            f"{printable(graph.source)}: Model.subgraphs: at least one is needed, got none"
        )
    return CallableModel(Functions(graph, view, source))


def save(
    source: Any,
    path: str | os.PathLike[str],
    params: Params | None = None,
    *,
    fold_normalizations: bool = False,
    dtype: Literal["float16"] | None = None,
    rescale: bool = False,
    calibrate: Iterable[Any] | None = None,
    io: FileIo | tuple[FileIo, FileIo] = "file",
) -> None:
    """Write a .tflite with other weights, scales or types of inputs: see `Model.save`.

    All numeric constants can be replaced, by their tensors' names, also in models that XLA cannot
    run.

    Args:
        source: a model, a path, or a file's content.
        path: the file to write, or a model in a bundle, as for `Model.save`; it may be the source.
        params: as for `Model.save`.
        fold_normalizations: fold MUL, DIV, ADD and SUB by a constant for each channel into the
            weights and bias of the float32 convolution or FULLY_CONNECTED directly before or after
            them, together with their fused activations. Results are equal except for rounding. The
            log lists the folded operators; if there are no such operators, it contains a warning,
            and the file's operators do not change.
        dtype: "float16": store float32 weights as float16, with a DEQUANTIZE operator for each, as
            TFLite's converter does. Scalars and inputs of custom operators stay float32.
        rescale: as for `Model.save`.
        calibrate: as for `Model.save`.
        io: as for `Model.save`.

    Raises:
        OptionError: another dtype, an unknown `io`, or a sharded model.
        TypeError: as for `Model.save`, or a source that is none of these.
        TensorError: as for `Model.save`; or folded weights are not finite, or values exceed the
            range of float16.
        ModelError: as for `Model.save`; or the file cannot be rewritten, as `dtype` and
            `fold_normalizations` require, too.
        OSError: the file cannot be written.
    """
    if dtype not in (None, "float16"):
        raise OptionError(
            f"save: dtype: expected 'float16' or None, got {dtype!r}; io changes the types of "
            "inputs and outputs"
        )
    if isinstance(source, ShardedModel):
        raise OptionError(
            "save: a sharded model has no file: save the model that was sharded, with the sharded "
            "model's params"
        )
    check_saved("save(source, path, params)", path, params)
    model = source if isinstance(source, CallableModel) else load(source)
    how = {"rescale": rescale, "calibrate": calibrate, "io": io}
    model._save(path, params, fold=fold_normalizations, half=dtype is not None, **how)
