"""One delegated partition in a stock interpreter: the delegate's kernel and its parameters."""

from collections.abc import Hashable, MutableMapping, Sequence
from typing import Any

from jaxdelegate.device_errors import is_out_of_memory
from jaxdelegate.errors import InterpreterError, JaxDelegateError
from jaxdelegate.litert.context import PartitionContext
from jaxdelegate.litert.graph import Graph, Specs
from jaxdelegate.model.records import Operator
from jaxdelegate.runtime.execution_plan import OperatorStep, PartitionStep
from jaxdelegate.simple_delegate import (
    DelegateContext,
    DelegateParams,
    SimpleDelegate,
    SimpleDelegateKernel,
)
from jaxdelegate.text import printable


class Partition:
    """The interpreter calls its methods through a TfLiteRegistration."""

    def __init__(
        self,
        delegate: SimpleDelegate,
        graph: Graph,
        shared: MutableMapping[Any, Any],
        operators: Sequence[Operator],
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        """Create and initialize the kernel.

        `shared` is the delegate's data for the lifetime of the interpreter. Operators are in
        execution order; inputs, constants included, and outputs are the node's.
        """
        self.delegate, self._graph = delegate, graph
        self._operators, self._inputs, self._outputs = operators, inputs, outputs
        self._prepared_for: Hashable = None
        self._context = PartitionContext(graph, shared)
        self._params = self._params_for(graph.specs)
        self._kernel = self._running = delegate.create_kernel()
        self._kernel.init(self._context, self._params)

    def __str__(self) -> str:
        named = [f"{printable(op.name)} #{op.index}" for op in self._operators[:4]]
        return ", ".join(named) + (", ..." if len(self._operators) > 4 else "")

    def prepare(self) -> None:
        """Prepare for the inputs' current shapes, and resize the outputs."""
        context, graph = self._context, self._graph
        specs, shapes = graph.specs_for(self._operators, self._inputs)
        if shapes != self._prepared_for:
            self._prepared_for = None  # in case preparing fails
            self._params = self._params_for(specs)
            context.update(specs, shapes, self._intermediate(specs))
            self._running = self._prepared_kernel()
            self._prepared_for = shapes
        context.size_outputs(self._params.outputs)
        context.forget()

    def run(self) -> None:
        self._context.start_run()
        try:
            self._running.eval(self._context, self._params)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or isinstance(error, JaxDelegateError):
                raise
            step = PartitionStep(self._params, self.delegate, self._running)
            raise step.failed(error) from error

    def _params_for(self, specs: Specs) -> DelegateParams:
        return DelegateParams(
            self._graph.nodes(self._operators, specs),
            tuple(i for i in self._inputs if i >= 0 and specs[i].const is None),
            tuple(i for i in self._outputs if i >= 0),
        )

    def _intermediate(self, specs: Specs) -> set[int]:
        written = {i for op in self._operators for i in op.outputs if i >= 0}
        return {i for i in written - set(self._outputs) if not specs[i].is_variable}

    def _prepared_kernel(self) -> SimpleDelegateKernel:
        """The delegate's kernel, or a host kernel if that fails and the delegate falls back."""
        kernel = self._kernel
        try:
            kernel.prepare(self._context, self._params)
        except JaxDelegateError as error:
            refusal = self._graph.refusal(self._operators)
            if refusal is not None:
                raise InterpreterError(refusal) from error
            if not self.delegate.options.fallback_on_error:
                raise
            self.delegate.on_fallback(self._graph.index, self._params.nodes, error)
            kernel = HostKernel(self._context)
            kernel.prepare(self._context, self._params)
        return kernel


class HostKernel(SimpleDelegateKernel):
    """The fallback of a partition: runs its operators by the numpy reference."""

    def __init__(self, context: PartitionContext) -> None:
        self._host = context
        self._steps: list[OperatorStep] = []

    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        """Do nothing before the shapes are final."""

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:  # noqa: ARG002 (the API's)
        """An InterpreterError if an operator has no reference kernel."""
        self._steps = [OperatorStep(n) for n in node.nodes]
        for step in self._steps:
            step.check()

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:
        """Run the operators one by one, and write the outputs that are constants."""
        for step in self._steps:
            step.run(self._host)
        for index in node.outputs:
            const = context.spec(index).const
            if const is not None:
                context.assign(index, const)
