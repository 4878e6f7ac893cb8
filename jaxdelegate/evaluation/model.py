"""The model under evaluation: it has one image input and runs on batches if it can.

Several devices take whole batches in turn. Every image is computed by the same program as on one
device, so results are bitwise identical however many devices there are. (A mesh would divide each
batch, and the smaller parts would need other programs.)
"""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxdelegate.digests import fingerprint
from jaxdelegate.errors import InterpreterError, JaxDelegateError
from jaxdelegate.evaluation.files import DataError, StrPath
from jaxdelegate.evaluation.images import INPUT_TYPES, Preprocessing
from jaxdelegate.evaluation.pipeline import BatchSource, Outputs, Pipeline, Start
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.kernels.processor import core_count
from jaxdelegate.text import printable

_TOLERANCE = 1e-3  # between a batch and a single image, relative to the largest output
_CHANNELS = 3
_STOCK_ERRORS = (RuntimeError, ValueError)  # what stock interpreters raise


@dataclasses.dataclass(frozen=True)
class ImageModel:
    """An allocated interpreter, jaxdelegate's or a stock one, with one image input [B, H, W, 3]."""

    interpreter: Any  # None where the model runs in another process
    digest: str  # the fingerprint of the file
    input_index: int
    input_shape: tuple[int, int, int, int]  # [B, H, W, 3]
    dtype: np.dtype  # the dtype of the input
    outputs: tuple[int, ...]
    output_shapes: tuple[tuple[int, ...], ...]  # with the batch
    output_dtypes: tuple[np.dtype, ...]  # in the order of `outputs`
    operators: tuple[tuple[str, tuple[int, ...]], ...]  # name and output tensors of each operator
    notes: tuple[str, ...]  # what the user may want to know about how it runs
    in_flight: int = 1  # how many batches to start before waiting for the results of the first
    devices: int = 1  # how many devices take batches in turn

    @property
    def batch_size(self) -> int:
        return self.input_shape[0]

    def preprocessing(self, crop_fraction: float | None) -> Preprocessing:
        return Preprocessing(*self.input_shape[1:3], self.dtype, crop_fraction)

    def batches(
        self, crop_fraction: float | None, decode_threads: int | None, start: Start | None = None
    ) -> BatchSource:
        """What decodes and crops images and runs the model; `start` replaces the method."""
        return Pipeline(
            self.preprocessing(crop_fraction),
            start or self.start,
            input_shape=self.input_shape,
            dtype=self.dtype,
            workers=decode_threads or core_count(),
            in_flight=self.in_flight,
        )

    def invoke(self, images: np.ndarray) -> Outputs:
        with stock_errors():
            return _invoke(self.interpreter, self.input_index, images, self.outputs)

    def start(self, images: np.ndarray) -> Callable[[], Outputs]:
        """Start to run images [B, H, W, 3]; the returned function waits for the outputs.

        Do not change the images until then. If only one batch is in flight, this is `invoke`.
        """
        if self.in_flight == 1:
            outputs = self.invoke(images)
            return lambda: outputs
        with stock_errors():
            results: Callable[[], Outputs] = self.interpreter._start({self.input_index: images})
        return results


@contextlib.contextmanager
def stock_errors(prefix: str = "") -> Iterator[None]:
    try:
        yield
    except JaxDelegateError:
        raise
    except _STOCK_ERRORS as error:
        raise InterpreterError(f"{prefix}{error}") from error


def open_interpreter(path: StrPath) -> Interpreter:
    """An interpreter of jaxdelegate with JaxDelegate, not allocated.

    jax is imported only here, so that callers with another interpreter can configure jax later.
    """
    from jaxdelegate.delegate.jax_delegate import JaxDelegate  # noqa: PLC0415

    delegate = JaxDelegate()
    return Interpreter(os.fspath(path), experimental_delegates=[delegate])


def open_image_model(
    path: StrPath, interpreter: Any, *, batch_size: int, num_outputs: int
) -> ImageModel:
    """Check a model and set its batch size: 1, with a note, if it does not support another."""
    source, digest = os.fspath(path), fingerprint(path)
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    if len(inputs) != 1 or len(outputs) != num_outputs:
        raise DataError(
            f"{printable(source)}: expected a model with 1 input and {num_outputs} output"
            f"{'s' if num_outputs > 1 else ''}, got {len(inputs)} and {len(outputs)}"
        )
    _check_input(source, inputs[0])
    index, indices = inputs[0]["index"], tuple(d["index"] for d in outputs)
    with stock_errors(f"{printable(source)}: "):
        notes = _set_batch(interpreter, inputs[0], batch_size, indices)
    details = interpreter.get_input_details()[0]
    return ImageModel(
        interpreter=interpreter,
        digest=digest,
        input_index=index,
        input_shape=tuple(details["shape"].tolist()),
        dtype=np.dtype(details["dtype"]),
        outputs=indices,
        output_shapes=_output_shapes(interpreter),
        output_dtypes=tuple(np.dtype(d["dtype"]) for d in outputs),
        operators=tuple(
            (op["op_name"], tuple(int(i) for i in op["outputs"]))
            for op in interpreter._get_ops_details()
        ),
        notes=notes,
        in_flight=_in_flight(interpreter),
    )


def _in_flight(interpreter: Any) -> int:
    """Two if inputs are copied to a device: one batch is copied while another is computed."""
    delegate = interpreter._jax_delegate if isinstance(interpreter, Interpreter) else None
    return 1 if delegate is None or delegate.target.platform == "cpu" else 2


def _check_input(source: str, details: dict[str, Any]) -> None:
    shape, signature = details["shape"].tolist(), details["shape_signature"].tolist()
    dtype = np.dtype(details["dtype"])
    sizes_known = len(shape) == 4 and all(n > 0 for n in signature[1:3])
    if not sizes_known or shape[0] != 1 or shape[3] != _CHANNELS or dtype not in INPUT_TYPES:
        raise DataError(
            f"{printable(source)}: expected an input [1, height, width, 3] of float32, uint8 or "
            f"int8, got {dtype} {signature}"
        )


def _set_batch(
    interpreter: Any, details: dict[str, Any], batch_size: int, outputs: tuple[int, ...]
) -> tuple[str, ...]:
    def why_not_batch() -> str | None:
        try:
            return _why_not_batch(interpreter, details, batch_size, outputs)
        except _STOCK_ERRORS as error:
            return str(error).partition("\n")[0]

    index, (_, *image) = details["index"], details["shape"].tolist()
    why_not: str | None = None
    if batch_size > 1:
        why_not = why_not_batch()
        if why_not is None:
            return ()
        if isinstance(interpreter, Interpreter) and interpreter._set_rebatch(True):
            if why_not_batch() is None:
                reason = interpreter._why_rebatched()
                return (f"rebatched: {batch_size} single runs in one program, because {reason}",)
            interpreter._set_rebatch(False)
        interpreter.resize_tensor_input(index, [1, *image])
    interpreter.allocate_tensors()
    return () if why_not is None else (f"the model runs image by image: {why_not}",)


def _why_not_batch(
    interpreter: Any, details: dict[str, Any], batch_size: int, outputs: tuple[int, ...]
) -> str | None:
    index, (_, *image) = details["index"], details["shape"].tolist()
    single = None
    images = _noise((batch_size, *image), np.dtype(details["dtype"]))
    if details["shape_signature"][0] != -1:
        interpreter.resize_tensor_input(index, [1, *image])
        interpreter.allocate_tensors()
        single = _invoke(interpreter, index, images[-1:], outputs)
    interpreter.resize_tensor_input(index, images.shape)
    interpreter.allocate_tensors()
    shapes = _output_shapes(interpreter)
    if any(shape[:1] != (batch_size,) for shape in shapes):
        return f"batches of {batch_size} have outputs of {[list(s) for s in shapes]}"
    if single is None:
        return None
    batched = _invoke(interpreter, index, images, outputs)
    if not all(_agree(many[-1:], one) for many, one in zip(batched, single, strict=True)):
        return "its outputs depend on the other images of a batch"
    return None


def _output_shapes(interpreter: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(d["shape"].tolist()) for d in interpreter.get_output_details())


def _noise(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    values = np.random.default_rng(0).integers(-128, 128, shape)
    if dtype == np.float32:
        return (values / 128).astype(np.float32)
    return (values + (128 if dtype == np.uint8 else 0)).astype(dtype)


def _agree(got: np.ndarray, expected: np.ndarray) -> bool:
    if got.shape != expected.shape:
        return False
    if expected.dtype.kind in "iu":
        return bool((np.abs(got.astype(np.int64) - expected.astype(np.int64)) <= 1).all())
    bound = _TOLERANCE * float(np.abs(expected).max(initial=0.0))
    return bool((np.abs(got - expected) <= bound).all())


def _invoke(interpreter: Any, index: int, images: np.ndarray, outputs: tuple[int, ...]) -> Outputs:
    interpreter.set_tensor(index, images)
    interpreter.invoke()
    return tuple(interpreter.get_tensor(i) for i in outputs)


# ---- several devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOnDevices(ImageModel):
    """An allocated interpreter on each device; the other attributes are those of the first."""

    starts: Iterator[Start]  # the devices in turn, again and again

    def start(self, images: np.ndarray) -> Callable[[], Outputs]:
        return next(self.starts)(images)


def _start(model: ImageModel, thread: ThreadPoolExecutor) -> Start:
    """`ImageModel.start`; in the thread, which has one device, if it would block the caller."""
    if model.in_flight > 1:
        return model.start
    return lambda images: thread.submit(model.invoke, images).result


def open_on_devices(
    path: StrPath, interpreter: Any, *, batch_size: int, num_outputs: int
) -> ImageModel:
    """Call `open_image_model` for one interpreter, or for several, each on another device.

    The first one determines how the model runs batches; the others follow it concurrently.
    """
    more = {"batch_size": batch_size, "num_outputs": num_outputs}
    if not isinstance(interpreter, Sequence):
        return open_image_model(path, interpreter, **more)
    if not interpreter:
        raise DataError(f"{os.fspath(path)}: expected at least one interpreter, got an empty list")
    first = open_image_model(path, interpreter[0], **more)
    threads = [ThreadPoolExecutor(1, f"device {i}") for i in range(len(interpreter))]
    others = [
        thread.submit(_like, first, other)
        for thread, other in zip(threads[1:], interpreter[1:], strict=True)
    ]
    models = [first, *(other.result() for other in others)]
    return ModelOnDevices(
        **vars(first)
        | {"in_flight": sum(model.in_flight for model in models), "devices": len(models)},
        starts=itertools.cycle(map(_start, models, threads)),
    )


def _like(first: ImageModel, interpreter: Any) -> ImageModel:
    with stock_errors():
        if isinstance(first.interpreter, Interpreter) and first.interpreter._why_rebatched():
            interpreter._set_rebatch(True)
        interpreter.resize_tensor_input(first.input_index, list(first.input_shape))
        interpreter.allocate_tensors()
    return dataclasses.replace(first, interpreter=interpreter)
