"""One partition of a JaxDelegate: finds its program or has it compiled, and runs it."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdelegate.cache.partition_key import KnownModel, touched_by
from jaxdelegate.compiler.program import Program, ResidentWeights
from jaxdelegate.pjrt import client
from jaxdelegate.runtime.simple_delegate import (
    DelegateContext,
    DelegateParams,
    Node,
    SimpleDelegateKernel,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence

    from jaxdelegate.delegate.jax_delegate import JaxDelegate
    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.pjrt.client import Runtime

_PROGRAMS = 16  # compiled programs kept per open model: input-shape signatures times partitions


@dataclasses.dataclass(frozen=True)
class CompiledPartition:
    """What one kernel runs: for tools that look into programs."""

    nodes: tuple[Node, ...]
    program: Program


class JaxKernel(SimpleDelegateKernel):
    """One partition on one device."""

    def __init__(self, delegate: JaxDelegate) -> None:
        """Belong to `delegate`."""
        self._delegate = delegate
        self._program: Program | None = None
        self._is_constant = False  # nothing is left to run
        self.compiled: CompiledPartition | None = None
        self._constant_outputs: tuple[tuple[int, Any], ...] = ()

    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        """Nothing to do before the shapes are final."""

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        """Compile for the current shapes, or take the program that was kept for them."""
        specs = touched(context, node)
        known = {i for i in node.outputs if specs[i].const is not None}
        self._constant_outputs = tuple((i, specs[i].const) for i in known)
        if all(n.is_constant for n in node.nodes):
            self._program, self.compiled, self._is_constant = None, None, True
            return
        kept = Kept.of(context.shared, self._delegate)
        key = _program_key(context, node)
        program = kept.get(key)
        if program is None:
            program = self._made(node, specs, [i for i in node.outputs if i not in known], kept)
            kept.put(key, program)
        self._program, self._is_constant = program, False
        self.compiled = CompiledPartition(node.nodes, program)

    def _made(
        self,
        node: DelegateParams,
        specs: Mapping[int, TensorSpec],
        outputs: Sequence[int],
        kept: Kept,
    ) -> Program:
        """The program from the cache, or a compiled one, which goes into it."""
        delegate = self._delegate
        cache, settings = delegate.programs, delegate.cache_settings()
        slot = None
        if cache is not None:
            for weights in kept.weights(delegate):
                device = weights.runtime.device
                slot = cache.slot(node, specs, kept.known, settings, device)
                program = None if slot is None else cache.load(slot, weights)
                if program is not None:
                    return program
        weights = kept.on(client.of_jax(delegate.device))
        program = delegate.compilation.program(node, specs, outputs, weights)
        return program if cache is None or slot is None else cache.save(slot, program, weights)

    @property
    def only_program(self) -> Program | None:
        """Its program, if there is nothing else to it: no output is a constant."""
        return None if self._constant_outputs else self._program

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:
        """Dispatch the program; results stay on the device until the host wants them."""
        program = self._program
        if program is not None:
            values = arriving(program, context)
            try:
                results = program(values)
            except client.NeedsJaxError:
                Kept.of(context.shared, self._delegate).forget()
                self.prepare(context, node)
                self.eval(context, node)
                return
            for index, result in zip((*program.outputs, *program.states), results, strict=True):
                context.assign(index, result)
        elif not self._is_constant:
            raise RuntimeError("eval before prepare")
        for index, value in self._constant_outputs:
            context.assign(index, value)


def arriving(program: Program, context: DelegateContext) -> list[Any]:
    """The values of a program's inputs, then of its states."""
    values = [context.value(i) for i in program.inputs]
    return values + [_state(context, i, spec) for i, spec in program.states.items()]


def _state(context: DelegateContext, index: int, spec: TensorSpec) -> Any:
    """A state's value; zeros for a resource variable that nothing was assigned to yet."""
    value = context.value(index)
    return np.zeros(spec.shape, spec.dtype) if value is None else value


class Kept:
    """What a delegate keeps with an open model: resident weights, the latest programs by shape."""

    def __init__(self) -> None:
        """Begin empty."""
        self._weights: dict[Runtime, ResidentWeights] = {}
        self.known = KnownModel()
        self._programs: OrderedDict[Hashable, Program] = OrderedDict()

    @classmethod
    def of(cls, shared: MutableMapping[Any, Any], delegate: JaxDelegate) -> Kept:
        """What a delegate keeps in a DelegateContext's `shared`."""
        kept = shared.setdefault(delegate, cls())
        if not isinstance(kept, cls):
            raise TypeError(f"context.shared[delegate] holds {type(kept).__name__}")
        return kept

    def on(self, where: Runtime) -> ResidentWeights:
        """The weights on a device."""
        return self._weights.setdefault(where, ResidentWeights(where))

    def weights(self, delegate: JaxDelegate) -> Iterator[ResidentWeights]:
        """Where a stored program can be loaded: without jax, then with it."""
        first = delegate.runtime
        yield self.on(first)
        if not first.has_jax:
            yield self.on(client.of_jax(delegate.device))

    def forget(self) -> None:
        """Drop all programs."""
        self._programs.clear()

    def get(self, key: Hashable) -> Program | None:
        """The program of a partition for some shapes, if it is kept."""
        if key in self._programs:
            self._programs.move_to_end(key)
        return self._programs.get(key)

    def put(self, key: Hashable, program: Program) -> None:
        """Keep a program; the one that was not used for longest gives way."""
        self._programs[key] = program
        while len(self._programs) > _PROGRAMS:
            self._programs.popitem(last=False)


def touched(context: DelegateContext, node: DelegateParams) -> dict[int, TensorSpec]:
    """The specs of all tensors that a partition's operators touch."""
    return {i: context.spec(i) for i in touched_by(node.nodes).union(node.outputs)}


def _program_key(context: DelegateContext, node: DelegateParams) -> Hashable:
    # Not the partition's own input shapes: folded constants may differ where those agree.
    return tuple(n.index for n in node.nodes), node.outputs, context.shapes()
