"""Finds and keeps what an interpreter needs to run a model's main subgraph without reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxdelegate.cache.constants import places
from jaxdelegate.cache.records import STARTS, StartRecord
from jaxdelegate.delegate.delegate_kernel import JaxKernel
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.device_weights import on_device
from jaxdelegate.digests import digests, source_digest
from jaxdelegate.program import StoredTensor
from jaxdelegate.report.delegation import fully_delegated
from jaxdelegate.runtime.stored_start import StoredStart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxdelegate.cache.key import Key
    from jaxdelegate.model.records import Model, Tensor
    from jaxdelegate.model.source import Source
    from jaxdelegate.program import Program
    from jaxdelegate.runtime.subgraph import SubgraphRunner
    from jaxdelegate.simple_delegate import SimpleDelegate


def find(
    delegates: Sequence[SimpleDelegate], source: Source, read: Callable[[], object]
) -> StoredStart | None:
    """The stored start of a model with one delegate; None: the model must be read.

    `read` reads the model; `JaxDelegate.partitions` calls it.
    """
    delegate = _only_delegate(delegates)
    key = None if delegate is None else _key(delegate, lambda: source_digest(source))
    if delegate is None or delegate.programs is None or key is None:
        return None
    programs = delegate.programs
    record = programs.record(STARTS, key)
    if record is None:
        return None
    delegate.on_partitioned(fully_delegated(delegate.name, delegate.device_name, record.nodes))
    target = delegate.target

    def load() -> Program:
        return programs.load_started(record, source.content, on_device(target.runtime))

    start = StoredStart(
        record.inputs, record.outputs, load, target.platform, delegate.device_name, read
    )
    delegate.started(start)
    return start


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
