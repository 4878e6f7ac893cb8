"""One partition of a JaxDelegate: gets its program, and runs it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdelegate import memory_errors
from jaxdelegate.cache.partition_key import tensors_of
from jaxdelegate.compile.programs import GraphState
from jaxdelegate.host_memory import aligned_zeros, pinned_zeros
from jaxdelegate.options import PINNED_INPUTS, is_on
from jaxdelegate.pjrt.client import NeedsJaxError
from jaxdelegate.program import Partition, Program
from jaxdelegate.simple_delegate import (
    DelegateContext,
    DelegateParams,
    GraphKey,
    Node,
    Shortcut,
    SimpleDelegateKernel,
)

if TYPE_CHECKING:
    from jaxdelegate.compile.compiler import Compiler
    from jaxdelegate.op_lowering.spec import Shape, TensorSpec


@dataclasses.dataclass(frozen=True)
class CompiledPartition:
    """A partition and its program, for tools that inspect programs."""

    nodes: tuple[Node, ...]
    program: Program


class JaxKernel(SimpleDelegateKernel):
    returns_own_memory = True

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._graph: GraphKey | None = None
        self._program: Program | None = None
        self._is_constant = False  # nothing is left to run
        self.compiled: CompiledPartition | None = None
        self._constant_outputs: tuple[tuple[int, Any], ...] = ()
        self._padded: dict[int, TensorSpec] = {}  # what the program takes for shorter inputs
        self._rows: dict[int, int] = {}  # the context's, where outputs are longer

    def init(self, context: DelegateContext, params: DelegateParams) -> None:  # noqa: ARG002 (the API's)
        """Keep what equal graphs share: the interpreter that has it may be deleted meanwhile."""
        self._graph = context.graph_key

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        """Compile for the current shapes, or take the program that was kept for them."""
        specs = partition_specs(context, node)
        known = {i for i in node.outputs if specs[i].const is not None}
        self._constant_outputs = tuple((i, specs[i].const) for i in known)
        if all(n.is_constant for n in node.nodes):
            self._program, self.compiled, self._is_constant = None, None, True
            return
        outputs = [i for i in node.outputs if i not in known]
        state = GraphState.of(context.shared, self._compiler)
        shapes = context.shapes() if node.padded_to is None else node.padded_to
        partition = Partition(node, specs, outputs)
        program = self._compiler.program(partition, context.graph_key, shapes, state)
        self._pad(context, node, specs)
        self._program, self._is_constant = program, False
        self.compiled = CompiledPartition(node.nodes, program)

    def _pad(
        self, context: DelegateContext, node: DelegateParams, specs: dict[int, TensorSpec]
    ) -> None:
        """Find the tensors that have fewer items in the context than in the program."""
        self._padded, self._rows = {}, {}
        if node.padded_to is None:
            return
        short = {i for i, spec in specs.items() if spec.shape != context.spec(i).shape}
        self._padded = {i: specs[i] for i in short.intersection(node.inputs)}
        self._rows = {i: context.spec(i).shape[0] for i in short.intersection(node.outputs)}

    @property
    def only_program(self) -> Program | None:
        """Its program, if there is nothing else to it: no output is a constant."""
        return None if self._constant_outputs else self._program

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:
        """Dispatch the program; results stay on the device until the host wants them."""
        program = self._program
        if program is not None:
            values = input_values(program, context)
            for position, index in enumerate(program.inputs):
                if index in self._padded:
                    values[position] = _with_zeros(values[position], self._padded[index])
            try:
                results = program(values)
            except NeedsJaxError:
                self._compiler.forget(context.graph_key, program)
                self.prepare(context, node)
                self.eval(context, node)
                return
            for index, result in zip((*program.outputs, *program.states), results, strict=True):
                rows = self._rows.get(index)
                context.assign(index, result if rows is None else np.asarray(result)[:rows])
        elif not self._is_constant:
            raise RuntimeError("eval before prepare")
        for index, value in self._constant_outputs:
            context.assign(index, value)

    def input_buffer(self, shape: Shape, dtype: np.dtype) -> np.ndarray | None:
        """Pinned memory on a GPU, if the switch is on."""
        if not pins_inputs(self._compiler.platform):
            return None
        return pinned_zeros(shape, dtype, self._compiler.device.client)

    def shortcut(self) -> Shortcut | None:
        """A call of the program without XLA's runtime, if it has been found to be possible."""
        program = self._program
        if program is None or self._constant_outputs or self._padded or self._rows:
            return None
        return program.shortcut()

    def described(self, error: Exception) -> str:
        """The device's message; if memory is short, the program's sizes and what helps."""
        if self._program is None:
            return super().described(error)
        return memory_errors.of_program(error, self._compiler.platform, self._program)


def pins_inputs(platform: str) -> bool:
    """Whether inputs are in memory that the device reads itself: JAXDELEGATE_PINNED_INPUTS."""
    return platform == "gpu" and is_on(PINNED_INPUTS)


def _with_zeros(value: Any, spec: TensorSpec) -> np.ndarray:
    padded = aligned_zeros(spec.shape, spec.dtype)
    padded[: len(value)] = value
    return padded


def input_values(program: Program, context: DelegateContext) -> list[Any]:
    """The values of a program's inputs, then of its states."""
    values = [context.value(i) for i in program.inputs]
    return values + [_state(context, i, spec) for i, spec in program.states.items()]


def _state(context: DelegateContext, index: int, spec: TensorSpec) -> Any:
    """A state's value; zeros for a resource variable that the program assigns, but nothing has."""
    value = context.value(index)
    return np.zeros(spec.shape, spec.dtype) if value is None else value


def partition_specs(context: DelegateContext, node: DelegateParams) -> dict[int, TensorSpec]:
    """The specs of a partition's tensors: its nodes' if the batch is sliced or padded."""
    if node.slices is not None or node.padded_to is not None:
        return {i: spec for n in node.nodes for i, spec in n.specs.items()}
    return {i: context.spec(i) for i in tensors_of(node.nodes).union(node.outputs)}
