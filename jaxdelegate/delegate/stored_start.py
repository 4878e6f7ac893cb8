"""An interpreter's main subgraph as one stored program, run without reading the model.

It can describe inputs and outputs, set and return their values, and run. For everything else the
interpreter reads the model.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdelegate.cache.constants import places
from jaxdelegate.cache.records import STARTS, StartRecord, StoredTensor
from jaxdelegate.compile import memory_errors
from jaxdelegate.delegate.delegate_kernel import JaxKernel
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.device_errors import device_error
from jaxdelegate.device_weights import on_device
from jaxdelegate.digests import digests, source_digest
from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.host_memory import aligned_zeros
from jaxdelegate.pjrt.client import LOAD_ERRORS, NeedsJaxError
from jaxdelegate.report.delegation import fully_delegated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxdelegate.cache.key import Key
    from jaxdelegate.model.records import Model, Tensor
    from jaxdelegate.model.source import Source
    from jaxdelegate.program import Program
    from jaxdelegate.runtime.subgraph import SubgraphRunner
    from jaxdelegate.simple_delegate import Shortcut, SimpleDelegate

_LOGGER = logging.getLogger("jaxdelegate")


class StoredStart:
    """A stored program, and the values of its inputs and outputs."""

    def __init__(
        self,
        delegate: JaxDelegate,
        start: StartRecord,
        content: memoryview,
        read: Callable[[], object],
    ) -> None:
        self._delegate, self._start, self._content = delegate, start, content
        self.read = read
        self._program: Program | None = None
        self._shortcut: Shortcut | None = None
        self._tensors = {t.index: t for t in (*start.inputs, *start.outputs)}
        self.values: dict[int, Any] = {}  # by tensor

    @property
    def is_allocated(self) -> bool:
        return self._program is not None

    @property
    def inputs(self) -> Sequence[StoredTensor]:
        return self._start.inputs

    @property
    def outputs(self) -> Sequence[StoredTensor]:
        return self._start.outputs

    def input(self, index: int) -> StoredTensor | None:
        """The input with this index; None: it is another tensor."""
        return next((t for t in self.inputs if t.index == index), None)

    def allocate(self) -> bool:
        """Load the program and lay out the inputs; False: it cannot be loaded."""
        if self._program is None:
            try:
                self._program = self._loaded()
            except LOAD_ERRORS as error:
                _LOGGER.debug("cache: the stored start is not used: %s", error)
                return False
            for tensor in self.inputs:
                self.values[tensor.index] = aligned_zeros(tensor.shape, np.dtype(tensor.dtype))
        return True

    def _loaded(self) -> Program:
        delegate = self._delegate
        if delegate.programs is None:
            raise LookupError("programs are not stored")
        weights = on_device(delegate.target.runtime)
        return delegate.programs.load_started(self._start, self._content, weights)

    def invoke(self) -> bool:
        """Run the program and wait for the results; False: running it needs jax."""
        program = self._program
        if program is None:
            raise RuntimeError("invoke before allocate")
        try:
            values = map(self.values.__getitem__, program.inputs)
            results = None if self._shortcut is None else self._shortcut.call(values)
            if results is None:
                results = program([self.values[i] for i in program.inputs])
                for array in results:
                    if not isinstance(array, np.ndarray):
                        array.block_until_ready()
        except NeedsJaxError as error:
            _LOGGER.debug("cache: the stored start is not used: %s", error)
            return False
        except JaxDelegateError:  # of a forked process
            raise
        except (RuntimeError, MemoryError) as error:
            said = memory_errors.of_program(error, self._delegate.target.platform, program)
            where = f"The model's program failed to invoke on {self._delegate.device_name}"
            raise device_error(error, f"{where}: {said}") from error
        self.values.update(zip(program.outputs, results, strict=True))
        self._shortcut = self._shortcut or program.shortcut()
        return True


def find(
    delegates: Sequence[SimpleDelegate], source: Source, read: Callable[[], object]
) -> StoredStart | None:
    """The stored start of a model with one delegate; None: the model must be read.

    Args:
        delegates: of the interpreter.
        source: of the model.
        read: reads the model; `JaxDelegate.partitions` calls it.
    """
    delegate = _only_delegate(delegates)
    key = None if delegate is None else _key(delegate, lambda: source_digest(source))
    if delegate is None or delegate.programs is None or key is None:
        return None
    start = delegate.programs.record(STARTS, key)
    if start is None:
        return None
    delegate.on_partitioned(fully_delegated(delegate.name, delegate.device_name, start.nodes))
    found = StoredStart(delegate, start, source.content, read)
    delegate.started(found)
    return found


def keep(delegates: Sequence[SimpleDelegate], model: Model, host: SubgraphRunner) -> None:
    """Store what the next start needs, if the main subgraph has become one stored program."""
    delegate = _only_delegate(delegates)
    subgraph, program = host.subgraph, _only_program(host)
    if (
        delegate is None
        or delegate.programs is None
        or program is None
        or program.file is None
        or program.states
        or program.donated
    ):
        return
    ends = [subgraph.tensors[i] for i in (*subgraph.inputs, *subgraph.outputs)]
    is_whole = {*program.outputs} == {*subgraph.outputs} and not model.external_buffer_groups
    if not is_whole or not all(map(_is_plain, ends)):
        return
    if any(host.spec(t.index).shape != t.shape for t in ends):
        return
    specs = {t.index: host.spec(t.index).const for t in subgraph.tensors}
    constants = {i: const for i, const in specs.items() if const is not None}
    start = StartRecord(
        program.file,
        tuple(_stored(subgraph.tensors[i]) for i in subgraph.inputs),
        tuple(_stored(subgraph.tensors[i]) for i in subgraph.outputs),
        places(constants, model.content),
        tuple((op.index, op.name, op.builtin_code, op.version) for op in subgraph.operators),
    )
    key = _key(delegate, lambda: digests([model.content])[0])
    if key is not None:
        delegate.programs.save_record(STARTS, key, start)


def _key(delegate: JaxDelegate, digest: Callable[[], str]) -> Key | None:
    """The key of a model's start record; None: starts are not stored."""
    if delegate.programs is None or not delegate.target.can_do_without_jax:
        return None
    settings = delegate.compiler.file_settings()
    return delegate.programs.file_key(digest(), settings, delegate.target.runtime.device)


def _only_delegate(delegates: Sequence[SimpleDelegate]) -> JaxDelegate | None:
    """The JaxDelegate; None for other or derived delegates, whose effects are not in the key."""
    first = delegates[0] if len(delegates) == 1 else None
    return first if isinstance(first, JaxDelegate) and type(first) is JaxDelegate else None


def _only_program(host: SubgraphRunner) -> Program | None:
    kernels = [getattr(step, "kernel", None) for step in host.steps]
    if len(kernels) == 1 and isinstance(kernels[0], JaxKernel):
        return kernels[0].only_program
    return None


def _is_plain(tensor: Tensor) -> bool:
    """Whether interpreters return it unconverted, and a record can describe it."""
    q = tensor.quantization
    return (
        tensor.dtype.kind in "biufc"
        and tensor.sparsity is None
        and not tensor.is_variable
        and (q is None or q.blockwise is None)
    )


def _stored(tensor: Tensor) -> StoredTensor:
    q = tensor.quantization
    return StoredTensor(
        index=tensor.index,
        name=tensor.name,
        shape=tensor.shape,
        shape_signature=tensor.shape_signature or tensor.shape,
        dtype=tensor.dtype.name,
        scales=() if q is None else tuple(np.array(q.scale, np.float32).tolist()),
        zero_points=() if q is None else tuple(np.array(q.zero_point, np.int32).tolist()),
        quantized_dimension=0 if q is None else q.quantized_dimension,
    )
