"""Runs in flight: outputs are copied to the host while the next run starts."""

from collections.abc import Callable

import numpy as np

from jaxdelegate.host_memory import on_host
from jaxdelegate.runtime import execution_plan
from jaxdelegate.runtime.subgraph import SubgraphRunner
from jaxdelegate.runtime.tensor_details import to_api_dtype

Results = Callable[[], tuple[np.ndarray, ...]]  # waits; copies of all outputs, in order


def results(host: SubgraphRunner) -> Results:
    """A function that waits for the outputs of the last `invoke`; later runs do not change them.

    It raises InterpreterError, which names the nodes, if the device failed.
    """
    tensors = host.subgraph.tensors
    values = {i: host.value(i) for i in host.subgraph.outputs}
    for value in values.values():
        getattr(value, "copy_to_host_async", bool)()

    def wait() -> tuple[np.ndarray, ...]:
        try:
            return tuple(to_api_dtype(tensors[i], on_host(v)) for i, v in values.items())
        except RuntimeError as error:
            raise execution_plan.failed_run(error, host.steps, values) from error

    return wait
