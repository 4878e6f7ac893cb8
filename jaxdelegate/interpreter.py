"""The interpreter, method for method and error for error as tf.lite.Interpreter.

Without delegates it is the numpy CPU reference.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec, TypeVar

import numpy as np

from jaxdelegate.delegate import device_arrays, starts
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import InterpreterError, OptionError, TensorError
from jaxdelegate.model.source import open_source
from jaxdelegate.simple_delegate import SimpleDelegate
from jaxdelegate.text import printable
from jaxdelegate.whole_imports import whole_imports

if TYPE_CHECKING:
    import jax

    from jaxdelegate.model.records import Model, SignatureDef
    from jaxdelegate.runtime.open_model import OpenModel
    from jaxdelegate.runtime.stored_start import StoredStart
    from jaxdelegate.runtime.subgraph import SubgraphRunner

_HELD_VIEW = """There is at least 1 reference to internal data
      in the interpreter in the form of a numpy array or slice. Be sure to
      only hold the function returned from tensor() if you are using raw
      data access."""


@enum.unique
class OpResolverType(enum.Enum):
    """Which kernels the stock interpreter uses. Here every choice means the numpy reference."""

    AUTO = 0
    BUILTIN = 1
    BUILTIN_REF = 2
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3


P = ParamSpec("P")
R = TypeVar("R")


_BUSY = (
    "another thread is using this interpreter; give each thread one of its own (they can share a "
    "delegate), or hold a lock from set_tensor to get_tensor"
)


def _exclusive(
    method: Callable[Concatenate[Interpreter, P], R],
) -> Callable[Concatenate[Interpreter, P], R]:
    """A method that raises while another thread is in one: their values would mix."""

    @functools.wraps(method)
    def call(self: Interpreter, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self._lock.acquire(False):  # by position: `invoke` is counted in microseconds
            raise InterpreterError(_BUSY)
        try:
            return method(self, *args, **kwargs)
        finally:
            self._lock.release()

    return call


class _Wrapper:
    """What scripts call of tf.lite's C++ wrapper, such as `interpreter._interpreter.NumNodes()`."""

    def __init__(self, interpreter: Interpreter) -> None:
        main = interpreter._model.subgraphs[0]
        details = interpreter._get_op_details
        self.NumNodes = lambda: len(main.operators)
        self.NumTensors = lambda subgraph: len(interpreter._model.subgraphs[subgraph].tensors)
        self.NodeName = lambda node: details(node)["op_name"]
        self.NodeInputs = lambda node: np.array(details(node)["inputs"], np.int32)
        self.NodeOutputs = lambda node: np.array(details(node)["outputs"], np.int32)
        self.InputIndices = lambda: np.array(main.inputs, np.int32)
        self.OutputIndices = lambda: np.array(main.outputs, np.int32)
        self.ResetVariableTensors = interpreter.reset_all_variables


class Interpreter:
    """Runs a .tflite model: delegated partitions by their delegates, the rest by numpy kernels.

    ```python
    from jaxdelegate.interpreter import Interpreter
    interpreter = Interpreter("model.tflite", experimental_delegates=[jaxdelegate.JaxDelegate()])
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    ```

    Any thread may use it, one at a time: a call that begins while another thread's is running
    raises InterpreterError. Threads that run a model at once have an interpreter each, and may
    share a delegate.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        model_content: bytes | None = None,
        experimental_delegates: Sequence[SimpleDelegate] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: OpResolverType = OpResolverType.AUTO,
        experimental_preserve_all_tensors: bool = False,
        experimental_disable_delegate_clustering: bool = False,
        experimental_default_delegate_latest_features: bool = False,
        experimental_compress_quantization_zero_points: bool = False,
        experimental_disable_delegate_node_fusion: bool = False,
        experimental_force_delegate_node_profiling: bool = False,
        *,
        max_tensor_bytes: int | None = None,
        max_host_memory: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Read the model and let each delegate choose its operators.

        Args:
            model_path: a .tflite file, or a model in a bundle (`gemma.litertlm!prefill_decode`); it
                is mapped, not copied.
            model_content: its content, instead of a path.
            experimental_delegates: SimpleDelegate objects, applied in order.
            num_threads: at least 1. Validated as in TFLite; XLA's CPU threads belong to the process
                (set NPROC before jax starts) and are not affected.
            experimental_op_resolver_type: accepted for compatibility; the kernels are numpy's.
            experimental_preserve_all_tensors: keep every intermediate tensor readable, those inside
                delegated partitions too.
            experimental_disable_delegate_clustering: accepted for compatibility, without effect, as
                are the next four, which are XNNPACK's or the stock interpreter's.
            experimental_default_delegate_latest_features: likewise.
            experimental_compress_quantization_zero_points: likewise.
            experimental_disable_delegate_node_fusion: likewise.
            experimental_force_delegate_node_profiling: likewise.
            max_tensor_bytes: how much one tensor may take; more is an error before anything is
                allocated, since a damaged file may declare any shape. None: 2 GiB.
            max_host_memory: bytes that the tensors of a plan may take at once in the host's memory;
                more is an error of `allocate_tensors` before anything is allocated. None: four
                fifths of the machine's memory, or of what its control group allows.
            timeout: seconds that one invoke may take; it ends with a StoppedError then, before the
                next operator or iteration of a loop. What a delegate has begun is not interrupted:
                loops of unknown length are not delegated. None: any.

        Raises:
            ModelError: the file cannot be opened or is damaged.
            ValueError: the arguments contradict each other.
            DelegationError: a delegate that requires it cannot take every operator.
        """
        del experimental_disable_delegate_clustering, experimental_default_delegate_latest_features
        del experimental_compress_quantization_zero_points
        del experimental_disable_delegate_node_fusion, experimental_force_delegate_node_profiling
        resolver = experimental_op_resolver_type
        _check_arguments(model_path, model_content, num_threads, resolver, timeout)
        self._delegates = list(experimental_delegates or ())
        for delegate in self._delegates:
            _check_delegate(delegate)
        source = open_source(model_path if model_content is None else model_content)  # type: ignore[arg-type]
        self._lock = threading.RLock()  # a kernel may call its own interpreter
        self._preserve = experimental_preserve_all_tensors
        self._max_tensor_bytes, self._max_host_memory = max_tensor_bytes, max_host_memory
        self._timeout = timeout
        self._source = source
        self._read: OpenModel | None = None
        self._main: SubgraphRunner | None = None  # the main subgraph's, once it has been invoked
        self._stored: StoredStart | None = None
        if not self._preserve and timeout is None:  # its program may have a loop that never ends
            own = weakref.ref(self)  # the delegate must not keep it alive
            self._stored = starts.find(self._delegates, source, lambda: _opened(own()))
        if self._stored is None:
            self._runner(0)

    def __repr__(self) -> str:
        """The model's name and the delegates."""
        name = os.path.basename(self._source.name)
        delegates = ", ".join(map(repr, self._delegates)) or "no delegate"
        return f"<jaxdelegate.Interpreter of {name!r} with {delegates}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: it has buffers, compiled programs and delegates' state.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "an Interpreter cannot be pickled or copied: create one in each process from the "
            "model's path or content (JaxDelegate can be pickled, and jaxdelegate.load(model) too)"
        )

    def _open(self) -> OpenModel:
        """The model, which is read when something is asked of it that no stored start knows."""
        return self._read or self._newly_read()

    def _newly_read(self) -> OpenModel:
        with whole_imports():
            from jaxdelegate.passes.limits import Limits  # noqa: PLC0415 (a stored start needs none)
            from jaxdelegate.runtime.open_model import OpenModel  # noqa: PLC0415 (likewise)

        with self._lock:  # here a second thread waits: it may only ask the delegate for partitions
            if self._read is not None:
                return self._read
            stored, self._stored = self._stored, None
            self._read = OpenModel.of(
                self._source,
                self._delegates,
                self._preserve,
                Limits.of(self._max_tensor_bytes, self._max_host_memory),
                self._timeout,
            )
            if stored is not None and stored.is_allocated:
                self._take_over(stored)
            return self._read

    def _take_over(self, stored: StoredStart) -> None:
        runner = self._runner(0)
        runner.allocate()
        for tensor in stored.inputs:
            np.copyto(runner.array(tensor.index), stored.values[tensor.index])
        for tensor in stored.outputs:
            if tensor.index in stored.values:
                runner.assign(tensor.index, stored.values[tensor.index])

    @property
    def _model(self) -> Model:
        return self._open().model

    @property
    def _interpreter(self) -> _Wrapper:
        return _Wrapper(self)

    @property
    def _runners(self) -> dict[int, SubgraphRunner]:
        return self._open().runners

    def _runner(self, subgraph_index: int) -> SubgraphRunner:
        return self._open().runner(subgraph_index)

    # ---- running

    @_exclusive
    def allocate_tensors(self, *, signatures: Iterable[str] | Literal["all"] = ()) -> None:
        """Plan for the current input shapes, compile partitions, lay out inputs and variables.

        Args:
            signatures: keys of signatures to prepare as well, or "all"; their programs are compiled
                at the same time where there are several cores. The others, as in stock
                interpreters, are prepared when they are first called.

        Raises:
            ValueError: a signature that the model does not have.
            InterpreterError: an operator refuses its shapes, or has no kernel (a RuntimeError).
            RuntimeError: a numpy view from `tensor()` is still held.
            ModelError: a file of more than 64 MiB was changed in place, as in `invoke`.
        """
        if self._stored is not None and not signatures:
            self._source.check_unchanged()
            if self._stored.allocate():
                return
        self._ensure_safe()
        runner = self._runner(0)
        is_first = not runner.is_allocated
        runner.allocate()
        if is_first and not self._preserve:
            starts.keep(self._delegates, self._model, runner)
        if signatures:
            keys = [signatures] if isinstance(signatures, str) else list(signatures)
            if signatures == "all":
                keys = [s.key for s in self._model.signatures]
            self._open().allocate(keys)

    def invoke(self, *, wait: bool | None = None) -> None:
        """Run the model.

        Args:
            wait: True: return when results are available and device errors have been raised.
                False: return without waiting for the device; reading a result waits for it and
                raises its errors. None: wait as stock interpreters do, unless every input was set
                to a device array. With live views (`tensor`) it always waits.

        Raises:
            InterpreterError: `allocate_tensors` was not called, or an operator or a partition
                failed.
            StoppedError: it was cancelled, or took longer than the interpreter's timeout.
            RuntimeError: a numpy view from `tensor()` is still held.
            ModelError: a file of more than 64 MiB, which is mapped and not read, was changed in
                place.
        """
        # As `_exclusive`, without its call: `invoke` is counted in microseconds.
        if not self._lock.acquire(False):
            raise InterpreterError(_BUSY)
        try:
            if self._main is None or not self._main.try_fast_path():
                self._invoke_whole(wait)
        finally:
            self._lock.release()

    def _invoke_whole(self, wait: bool | None) -> None:
        if self._stored is not None and self._stored.is_allocated:
            self._source.check_unchanged()
            if self._stored.invoke():
                self._source.check_unchanged()
                return
        self._ensure_safe()
        self._invoke(0, wait=wait)
        self._main = self._runner(0)

    def _invoke(self, subgraph_index: int, wait: bool | None = None) -> None:
        runner = self._runner(subgraph_index)
        if not runner.is_allocated:
            raise InterpreterError(
                "Invoke called on model that is not ready. Call allocate_tensors() first."
            )
        self._open().store.stop.begin()
        runner.invoke(wait)

    @_exclusive
    def _start(
        self, inputs: Mapping[int, np.ndarray], subgraph_index: int = 0
    ) -> Callable[[], tuple[np.ndarray, ...]]:
        """Set inputs and run, for tools; waits only for operators on the host.

        With a JaxDelegate the arrays are copied to its device while earlier runs compute: do not
        modify them until the results are available.

        Raises:
            InterpreterError, TensorError: as `set_tensor` and `invoke`.
        """
        delegate = self._jax_delegate
        for index, array in inputs.items():
            if delegate is None or array.dtype.hasobject:  # strings are for no device
                self._set(subgraph_index, index, array)
            else:
                self._set(subgraph_index, index, device_arrays.lent(array, delegate.device))
        self._invoke(subgraph_index, wait=False)
        return self._runner(subgraph_index).results()

    def cancel(self) -> None:
        """End the invoke that runs now in another thread: it raises a StoppedError.

        As TfLiteInterpreterCancel: it returns at once, and a later invoke is not affected. The
        invoke ends before its next operator or iteration of a loop; a delegated partition that has
        begun is not interrupted. Afterwards the interpreter can be used on.
        """
        if self._read is not None:
            self._read.store.stop.cancel()

    @_exclusive
    def reset_all_variables(self) -> None:
        """Set every variable tensor to zero, recurrent state included."""
        for runner in self._runners.values():
            runner.reset_variables()
        self._open().store.reset_variables()

    @_exclusive
    def resize_tensor_input(
        self, input_index: int, tensor_size: Sequence[int], strict: bool = False
    ) -> None:
        """Give an input another shape; call `allocate_tensors` afterwards.

        Args:
            input_index: the tensor's index.
            tensor_size: the new shape.
            strict: refuse to change dimensions that are not -1 in the tensor's `shape_signature`.

        Raises:
            InterpreterError: no such tensor, or `strict` forbids it.
            TensorError: a negative size.
        """
        _check_index("input_index", input_index)
        known = None if self._stored is None else self._stored.input(input_index)
        if known is not None and not strict and known.shape == _sizes(tensor_size):
            return
        self._ensure_safe()
        self._resize(0, input_index, tensor_size, strict=strict)

    def _resize(
        self, subgraph_index: int, index: int, shape: Sequence[int], *, strict: bool
    ) -> None:
        runner = self._runner(subgraph_index)
        tensors = runner.subgraph.tensors
        new = _sizes(shape)
        if not 0 <= index < len(tensors):
            raise InterpreterError(
                f"Invalid tensor index {index} exceeds max tensor index {len(tensors) - 1}"
            )
        if any(n < 0 for n in new):
            raise TensorError(
                f"resize_tensor_input {index}: sizes must not be negative, got {list(new)}"
            )
        if strict:
            _check_strict(index, new, tensors[index].shape, tensors[index].shape_signature)
        runner.resize(index, new)

    def _set_rebatch(self, value: bool) -> bool:
        """Change the option `rebatch` of its JaxDelegates, for tools; whether there are any."""
        delegates = [d for d in self._delegates if isinstance(d, JaxDelegate)]
        for delegate in delegates:
            delegate.set_rebatch(value)
        return bool(delegates)

    def _why_rebatched(self, subgraph_index: int = 0) -> str | None:
        """Why the current batch runs as single runs; None: it does not."""
        return self._runner(subgraph_index).why_rebatched

    def _ensure_safe(self) -> None:
        if any(runner.views for runner in self._runners.values()):
            raise RuntimeError(_HELD_VIEW)

    # ---- tensors

    @_exclusive
    def set_tensor(self, tensor_index: int, value: Any) -> None:
        """Set an input or a variable tensor; `invoke` overwrites tensors that it computes.

        Strings may be `str`, which is stored as UTF-8, or `bytes`. Host arrays are copied. With a
        JaxDelegate an array of jax becomes the value itself, and one that another library has on a
        device (`__dlpack__`) is copied there; on another device than the delegate's it is moved to
        that. Kernels on the host copy it to the host when they run.

        Raises:
            TensorError: dtype, rank or a dimension is not the tensor's, nothing is allocated, or
                jax has not that device; or the tensor is a constant, whose value is part of
                compiled programs.
        """
        if self._main is not None and self._main.copied_in(tensor_index, value):
            return
        stored = self._stored
        known = None if stored is None else stored.input(tensor_index)
        if stored is not None and known is not None and stored.is_allocated:
            array = device_arrays.taken(value)
            is_fitting = array.dtype == known.dtype and array.shape == tuple(known.shape)
            if isinstance(array, np.ndarray) and is_fitting:
                np.copyto(stored.values[tensor_index], array)
                return
        self._set(0, tensor_index, value)

    def _set(self, subgraph_index: int, index: int, value: Any) -> None:
        runner = self._checked(subgraph_index, index)
        if runner.spec(index).const is not None and index not in runner.subgraph.inputs:
            raise _not_an_input(runner, index)
        self._write(runner, index, device_arrays.taken(value))

    def _write(self, runner: SubgraphRunner, index: int, value: Any) -> None:
        spec, array = runner.spec(index), value
        if value.dtype != spec.dtype or spec.dtype.hasobject:
            from jaxdelegate.runtime.tensor_details import from_api_dtype  # noqa: PLC0415

            array = from_api_dtype(runner.subgraph.tensors[index], _as_array(value, spec.dtype))
            if spec.dtype.hasobject and array.size == 1:
                self._open().store.paths[runner.subgraph.index, index] = array.reshape(-1)[0]
        if array.dtype != spec.dtype or array.shape != spec.shape:
            from jaxdelegate.plan import fitting  # noqa: PLC0415 (for errors only)

            raise fitting.mismatch(index, array, spec)
        if not isinstance(array, np.ndarray):
            delegate = self._jax_delegate
            array = (
                np.asarray(array)
                if delegate is None
                else device_arrays.placed(array, delegate.device)
            )
        try:
            runner.write(index, array)
        except LookupError:
            if runner.is_allocated:
                raise _not_an_input(runner, index) from None
            raise TensorError(
                "Cannot set tensor: Tensor is unallocated. Try calling allocate_tensors() first"
            ) from None

    @_exclusive
    def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> np.ndarray:
        """A copy of a tensor's value.

        Raises:
            TensorError: no such tensor, or it holds no data: nothing was run yet, or it is an
                intermediate that was released (`experimental_preserve_all_tensors` keeps those).
        """
        if subgraph_index == 0 and self._main is not None:
            copy = self._main.copied_out(tensor_index)
            if copy is not None:
                return copy
        stored = self._stored
        if stored is not None and subgraph_index == 0 and tensor_index in stored.values:
            return np.array(stored.values[tensor_index])
        return self._copied(self._checked(subgraph_index, tensor_index), tensor_index)

    def _copied(self, runner: SubgraphRunner, tensor_index: int) -> np.ndarray:
        from jaxdelegate.runtime.tensor_details import to_api_dtype  # noqa: PLC0415 (knows the model's types)

        try:
            return to_api_dtype(runner.subgraph.tensors[tensor_index], runner.array(tensor_index))
        except LookupError:
            raise _no_data(runner) from None

    @_exclusive
    def get_device_tensor(self, tensor_index: int, subgraph_index: int = 0) -> jax.Array:
        """A tensor's value as an array of jax, on the device of the JaxDelegate.

        An array on the device is returned without a copy and without waiting: do not donate it.
        Reading it raises device errors. An array in host memory is copied to the device.

        Raises:
            TensorError: no such tensor, or it holds no data, as for `get_tensor`; or it holds
                strings or handles, which are no device's.
        """
        return self._on_device(self._checked(subgraph_index, tensor_index), tensor_index)

    def _on_device(self, runner: SubgraphRunner, tensor_index: int) -> jax.Array:
        from jaxdelegate.runtime.tensor_details import to_device_dtype  # noqa: PLC0415 (imports models)

        spec, value = runner.spec(tensor_index), runner.value(tensor_index)
        if value is None:
            raise _no_data(runner)
        if spec.dtype.hasobject:
            raise TensorError(
                f"tensor {tensor_index} {spec.name!r} cannot be on a device: use get_tensor"
            )
        delegate = self._jax_delegate
        array = device_arrays.placed(value, None if delegate is None else delegate.device)
        result: jax.Array = to_device_dtype(runner.subgraph.tensors[tensor_index], array)
        return result

    @functools.cached_property
    def _jax_delegate(self) -> JaxDelegate | None:
        """The first that it has: device arrays are on its device."""
        return next((d for d in self._delegates if isinstance(d, JaxDelegate)), None)

    def tensor(self, tensor_index: int) -> Callable[[], np.ndarray]:
        """A function that returns a live numpy view of a tensor's buffer, read-only of a constant.

        Hold the function as long as you like, the view only until the next `invoke`.

        Raises:
            TensorError: (when the function is called) no such tensor, or it holds no data.
        """

        def view() -> np.ndarray:
            return self._view(tensor_index)

        return view

    @_exclusive
    def _view(self, tensor_index: int) -> np.ndarray:
        runner = self._checked(0, tensor_index)
        try:
            return runner.view(tensor_index)
        except LookupError:
            raise TensorError("Tensor data is null. Run allocate_tensors() first") from None

    def _checked(self, subgraph_index: int, index: int) -> SubgraphRunner:
        _check_index("tensor_index", index)
        runner = self._runner(subgraph_index)
        last = len(runner.subgraph.tensors) - 1
        if not 0 <= index <= last:
            raise TensorError(f"Invalid tensor index {index} exceeds max tensor index {last}")
        return runner

    # ---- details

    def num_subgraphs(self) -> int:
        """How many subgraphs the model has."""
        return len(self._model.subgraphs)

    def get_input_details(self) -> list[dict[str, Any]]:
        """Name, index, shape, shape_signature, dtype and quantization of each input."""
        if self._stored is not None:
            return [tensor.details() for tensor in self._stored.inputs]
        return [self._get_tensor_details(i, 0) for i in self._model.subgraphs[0].inputs]

    def get_output_details(self) -> list[dict[str, Any]]:
        """Name, index, shape, shape_signature, dtype and quantization of each output."""
        if self._stored is not None:
            return [tensor.details() for tensor in self._stored.outputs]
        return [self._get_tensor_details(i, 0) for i in self._model.subgraphs[0].outputs]

    def get_tensor_details(self, subgraph_index: int = 0) -> list[dict[str, Any]]:
        """Name, index, shape, shape_signature, dtype and quantization of each tensor of a subgraph.

        Raises:
            TensorError: no such subgraph.
        """
        count = self.num_subgraphs()
        if not 0 <= subgraph_index < count:
            raise TensorError(
                f"subgraph_index is out of range: {subgraph_index} for the model,"
                f" which has {count} subgraphs."
            )
        tensors = self._model.subgraphs[subgraph_index].tensors
        return [self._get_tensor_details(i, subgraph_index) for i in range(len(tensors))]

    def _get_tensor_details(self, tensor_index: int, subgraph_index: int) -> dict[str, Any]:
        from jaxdelegate.runtime.tensor_details import tensor_details  # noqa: PLC0415

        runner = self._checked(subgraph_index, int(tensor_index))
        tensor = runner.subgraph.tensors[tensor_index]
        value = runner.value(int(tensor_index))
        shape = runner.spec(tensor_index).shape if value is None else value.shape
        return tensor_details(tensor, tuple(shape))

    def _get_op_details(self, op_index: int) -> dict[str, Any]:
        subgraph = self._model.subgraphs[0]
        if not 0 <= op_index < len(subgraph.operators):
            raise ValueError("Invalid node index")
        from jaxdelegate.runtime.tensor_details import op_details  # noqa: PLC0415

        return op_details(subgraph, op_index)

    def _get_ops_details(self) -> list[dict[str, Any]]:
        return [self._get_op_details(i) for i in range(len(self._model.subgraphs[0].operators))]

    # ---- signatures

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """Input and output names of each signature, sorted as in `tf.lite`."""
        return {
            s.key: {"inputs": sorted(s.inputs), "outputs": sorted(s.outputs)}
            for s in self._model.signatures
        }

    def _get_full_signature_list(self) -> dict[str, dict[str, dict[str, int]]]:
        return {
            s.key: {"inputs": _by_name(s.inputs), "outputs": _by_name(s.outputs)}
            for s in self._model.signatures
        }

    def get_signature_runner(self, signature_key: str | None = None) -> SignatureRunner:
        """A callable for one signature; the key may be left out if the model has exactly one.

        Raises:
            ValueError: no such signature, or none was named and there is not exactly one.
        """
        signatures = {s.key: s for s in self._model.signatures}
        if signature_key is None:
            if len(signatures) != 1:
                raise ValueError(
                    f"SignatureDef signature_key is None and model has {len(signatures)} "
                    "Signatures. None is only allowed when the model has 1 SignatureDef"
                )
            signature_key = next(iter(signatures))
        if signature_key not in signatures:
            there = ", ".join(map(repr, signatures)) or "none: use set_tensor and invoke"
            raise ValueError(
                f'Invalid signature_key provided: "{signature_key}". The model has {there}'
            )
        return SignatureRunner(self, signatures[signature_key])

    @_exclusive
    def _call(
        self,
        signature_runner: SignatureRunner,
        inputs: Mapping[str, Any],
        get: Callable[[Interpreter, SubgraphRunner, int], R],
    ) -> dict[str, R]:
        """A signature's outputs by name: no other thread comes between inputs and outputs."""
        runner = signature_runner._run(inputs)
        outputs = signature_runner._signature.outputs
        return {name: get(self, runner, tensor) for name, tensor in outputs.items()}


class InterpreterWithCustomOps(Interpreter):
    """The class of `ai_edge_litert.interpreter`: runs custom operators that jaxdelegate has.

    Registerers are functions of a C++ library, whose kernels cannot run here. They are accepted,
    so that a script runs unchanged, and not called. `jaxdelegate.register_operator` adds an
    operator in Python.
    """

    def __init__(
        self,
        custom_op_registerers: Sequence[str | Callable[[int], None]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Read the model; `kwargs` are those of `Interpreter`.

        Raises:
            OptionError: registerers are given, and neither jaxdelegate nor a delegate of the
                arguments has an operator that they may add.
        """
        super().__init__(**kwargs)
        if not custom_op_registerers or self._delegates:
            return
        lacking = sorted(_lacking(self._model))
        if lacking:
            raise OptionError(
                f"custom_op_registerers add C++ kernels, which do not run here, and jaxdelegate "
                f"has no operator {', '.join(map(printable, lacking))}: add it in Python by "
                "jaxdelegate.register_operator (docs/custom_operators.md), or run the model in "
                "ai_edge_litert's InterpreterWithCustomOps, with JaxDelegate for the other "
                "operators (docs/stock_interpreters.md)"
            )


def _lacking(model: Model) -> set[str]:
    """The custom operators of a model that have no kernel."""
    from jaxdelegate.reference.registry import KERNELS  # noqa: PLC0415 (likewise)

    operators = (operator for subgraph in model.subgraphs for operator in subgraph.operators)
    return {o.name for o in operators if o.custom and o.name not in KERNELS}


def _no_data(runner: SubgraphRunner) -> TensorError:
    hint = "; intermediates need experimental_preserve_all_tensors" if runner.is_allocated else ""
    return TensorError(f"Tensor data is null. Run allocate_tensors() first{hint}")


def _not_an_input(runner: SubgraphRunner, index: int) -> TensorError:
    tensor = runner.subgraph.tensors[index]
    if tensor.stored is None:
        why = "computed by the model. To run the operators after it use"
        remedy = f"jaxdelegate.load(model).from_({tensor.name!r})"
    else:
        why = "a constant, which programs are compiled with. To write a model with other values use"
        remedy = f"jaxdelegate.save(model, path, {{{tensor.name!r}: values}})"
    return TensorError(f"Cannot set tensor: {index} {tensor.name!r} is {why} {remedy}")


def _opened(interpreter: Interpreter | None) -> None:
    if interpreter is not None:
        interpreter._open()


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in np.asarray(shape).reshape(-1))


def _check_arguments(
    path: Any, content: Any, num_threads: Any, resolver: Any, timeout: float | None
) -> None:
    if not isinstance(resolver, enum.Enum) or resolver.name not in OpResolverType.__members__:
        raise ValueError(f"Unrecognized passed in op resolver type: {resolver}")
    if num_threads is not None:
        if not isinstance(num_threads, int):
            raise ValueError("type of num_threads should be int")
        if num_threads < 1:
            raise ValueError("num_threads should >= 1")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout: expected a positive number of seconds, got {timeout!r}")
    if content is not None and not isinstance(content, bytes | bytearray | memoryview):
        raise TypeError(
            f"model_content: expected bytes, got {type(content).__name__}; delegates are "
            "experimental_delegates=[...]"
        )
    if not path and content is None:
        raise ValueError("`model_path` or `model_content` must be specified.")
    if path and content:
        raise ValueError("Can't both provide `model_path` and `model_content`")


def _check_index(what: str, index: Any) -> None:
    if not isinstance(index, int | np.integer):
        remedy = "; pass its ['index']" if isinstance(index, Mapping) else ""
        got = repr(index) if isinstance(index, str) else type(index).__name__
        raise TypeError(f"{what}: expected an integer from get_input_details(), got {got}{remedy}")


def _check_delegate(delegate: Any) -> None:
    if isinstance(delegate, SimpleDelegate):
        return
    if isinstance(delegate, type):
        got, remedy = f"the class {delegate.__name__}", f"make one: {delegate.__name__}()"
    else:
        got, remedy = type(delegate).__name__, "compiled delegates need the stock interpreter"
    raise TypeError(
        f"experimental_delegates: expected delegates such as JaxDelegate(), got {got}; {remedy}"
    )


def _check_strict(
    index: int, new: tuple[int, ...], shape: tuple[int, ...], signature: tuple[int, ...] | None
) -> None:
    allowed = signature or shape
    if len(new) != len(shape):
        raise InterpreterError(
            f"Attempting to resize tensor {index} of rank {len(shape)} to rank {len(new)}. "
            "ResizeInputTensorStrict only allows mutating unknown dimensions identified by -1."
        )
    for axis, (size, known) in enumerate(zip(new, allowed, strict=True)):
        if known not in (-1, size):
            raise InterpreterError(
                f"Attempting to resize dimension {axis} of tensor {index} with value {known} to "
                f"{size}. ResizeInputTensorStrict only allows mutating unknown dimensions "
                "identified by -1."
            )


def _as_array(array: Any, dtype: np.dtype) -> Any:
    """Strings as bytes, for a tensor of strings."""
    if not dtype.hasobject or array.dtype.kind not in "SUO":
        return array
    items = [s.encode() if isinstance(s, str) else s for s in array.ravel().tolist()]
    wrong = [type(s).__name__ for s in items if not isinstance(s, bytes)]
    if wrong:
        raise TensorError(f"Cannot set tensor: expected strings (str or bytes), got {wrong[0]}")
    return np.array([*items, None], object)[:-1].reshape(array.shape)


def _by_name(tensors: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(tensors.items()))


class SignatureRunner:
    """Runs one signature: keyword arrays in, a dictionary of arrays out, its names sorted."""

    def __init__(self, interpreter: Interpreter, signature: SignatureDef) -> None:
        """Made by `Interpreter.get_signature_runner`."""
        self._interpreter = interpreter
        inputs, outputs = _by_name(signature.inputs), _by_name(signature.outputs)
        self._signature = dataclasses.replace(signature, inputs=inputs, outputs=outputs)

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Resize to the given arrays' shapes, run, and return a copy of every output by name.

        Raises:
            ValueError: too few, too many or unknown names; a wrong dtype (TensorError).
        """
        return self._interpreter._call(self, inputs, Interpreter._copied)

    def on_device(self, **inputs: Any) -> dict[str, jax.Array]:
        """Run as by a call, but leave the outputs on the device: see `get_device_tensor`."""
        return self._interpreter._call(self, inputs, Interpreter._on_device)

    def _run(self, inputs: Mapping[str, Any]) -> SubgraphRunner:
        expected, index = self._signature.inputs, self._signature.subgraph
        if len(inputs) != len(expected):
            raise ValueError(
                "Invalid number of inputs provided for running a SignatureDef, "
                f"expected {len(expected)} vs provided {len(inputs)}: it has "
                f"{printable(', '.join(expected))}"
            )
        arrays = {name: device_arrays.taken(value) for name, value in inputs.items()}
        interpreter = self._interpreter
        runner = interpreter._runner(index)
        for name, array in arrays.items():
            if name not in expected:
                raise ValueError(
                    f"Invalid Input name ({printable(name)}) for SignatureDef; it has "
                    f"{printable(', '.join(expected))}"
                )
            if not runner.has_shape(expected[name], array.shape):
                interpreter._resize(index, expected[name], array.shape, strict=False)
        if not runner.is_allocated:
            runner.allocate()
        for name, array in arrays.items():
            interpreter._write(runner, expected[name], array)
        interpreter._invoke(index)
        return runner

    def __repr__(self) -> str:
        """The signature's key, inputs and outputs."""
        ends = " -> ".join(
            ", ".join(row) for row in (self._signature.inputs, self._signature.outputs)
        )
        return f"<SignatureRunner {self._signature.key!r}: {ends}>"

    def get_input_details(self) -> dict[str, dict[str, Any]]:
        """Tensor details by input name."""
        return self._details(self._signature.inputs)

    def get_output_details(self) -> dict[str, dict[str, Any]]:
        """Tensor details by output name."""
        return self._details(self._signature.outputs)

    def _details(self, names: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        get = self._interpreter._get_tensor_details
        return {name: get(tensor, self._signature.subgraph) for name, tensor in names.items()}
