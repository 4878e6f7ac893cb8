"""What a rule sees outside of its operator."""

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import CallOptions
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import (
    KernelSet,
    LoweringContext,
    Op,
    ProgramTraits,
    SubgraphAccess,
)
from jaxdelegate.op_lowering.spec import TensorSpec

X = TensorSpec("x", (2,), np.dtype(np.float32))


def test_subgraphs_may_be_out_of_reach() -> None:
    op = Op(LoweringContext(), CallOptions(3), (X,), (X,))
    reason = "the delegate has no access to the subgraphs that the operator calls"
    assert RULES["CALL"].reason(op) == reason
    with pytest.raises(ValueError, match="no access to subgraph 3"):
        RULES["CALL"].lower(op)


def test_a_called_subgraph_decides_and_computes() -> None:
    def doubled(_index: int, _inputs: object) -> object:
        return lambda x: (2 * x,)

    context = LoweringContext(subgraphs=SubgraphAccess(doubled, lambda i, _: f"{i} is dynamic"))  # type: ignore[arg-type]
    op = Op(context, CallOptions(3), (X,), (X,))
    assert RULES["CALL"].reason(op) == "3 is dynamic"
    assert RULES["CALL"].lower(op)(4) == (8,)


def test_an_emulated_gpu_has_none_of_our_kernels() -> None:
    policy = PrecisionPolicy(accumulate_float32=False)
    context = LoweringContext(kernels=KernelSet(True, True, True, True, True))
    gpu = context.on_gpu(policy)
    assert (gpu.platform, gpu.precision, gpu.kernels) == ("gpu", policy, KernelSet())


def test_a_trait_of_a_program_changes_alone() -> None:
    context = LoweringContext(program=ProgramTraits(follows_xnnpack=True))
    changed = context.in_program(weights_vary=True)
    assert changed.program == ProgramTraits(weights_vary=True, follows_xnnpack=True)
    assert changed != context
