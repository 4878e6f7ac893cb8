"""Control flow: kernels/{if,while,call_once,stablehlo_case,stablehlo_composite}.cc."""

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from jaxdelegate.op_lowering.control_flow.options import (
    CallOnceOptions,
    CallOptions,
    IfOptions,
    StablehloCaseOptions,
    StableHLOCompositeOptions,
    StablehloWhileOptions,
    WhileOptions,
)
from jaxdelegate.op_lowering.resources.reference import none_declared, nothing
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Infer, Kernel, Services

_Arrays = tuple[Array, ...]
_Shapes = tuple[Shape | None, ...]


def unknown_shapes(_options: object, _inputs: Specs) -> _Shapes:
    """The shapes are those of subgraphs."""
    return ()


def _agreed(branches: Sequence[Specs], outputs: Specs = ()) -> _Shapes:
    for specs in branches:
        for spec, output in zip(specs, outputs, strict=False):
            if output is not None and spec.dtype != output.dtype:
                raise ValueError(
                    f"a subgraph returns {spec.dtype} for {output.name!r}, which is {output.dtype}"
                )
    agreed: list[Shape | None] = []
    for specs in zip(*branches, strict=True):
        shapes = {None if spec.is_dynamic else spec.shape for spec in specs}
        agreed.append(shapes.pop() if len(shapes) == 1 else None)
    return tuple(agreed)


def if_shapes(infer: Infer, o: IfOptions, inputs: Specs, outputs: Specs) -> _Shapes:
    branches = (o.then_subgraph_index, o.else_subgraph_index)
    return _agreed([infer(branch, inputs[1:]) for branch in branches], outputs)


def if_(
    call: Services, o: IfOptions, _i: Specs, _o: Specs, condition: Array, *arrays: Array
) -> _Arrays:
    branch = o.then_subgraph_index if condition.reshape(-1)[0] else o.else_subgraph_index
    return call(branch, *arrays)


def case_shapes(infer: Infer, o: StablehloCaseOptions, inputs: Specs, outputs: Specs) -> _Shapes:
    called = [infer(branch, inputs[1:]) for branch in o.branch_subgraph_indices]
    return _agreed(called, outputs)


def case(
    call: Services, o: StablehloCaseOptions, _i: Specs, _o: Specs, index: Array, *arrays: Array
) -> _Arrays:
    """An index out of range names the last branch."""
    branches, chosen = o.branch_subgraph_indices, int(index.reshape(-1)[0])
    return call(branches[chosen if 0 <= chosen < len(branches) else -1], *arrays)


def while_shapes(
    infer: Infer, o: WhileOptions | StablehloWhileOptions, inputs: Specs, _outputs: Specs
) -> _Shapes:
    """The inputs' shapes where the body keeps them."""
    started = tuple(dataclasses.replace(spec, const=None) for spec in inputs)
    conditions = infer(o.cond_subgraph_index, started)
    if len(conditions) != 1 or conditions[0].dtype != bool:
        results = ", ".join(str(spec.dtype) for spec in conditions) or "nothing"
        raise TypeError(
            f"the condition must be one boolean, subgraph {o.cond_subgraph_index} returns {results}"
        )
    return _agreed([started, infer(o.body_subgraph_index, started)])


def while_(
    call: Services, o: WhileOptions | StablehloWhileOptions, _i: Specs, _o: Specs, *arrays: Array
) -> _Arrays:
    while call(o.cond_subgraph_index, *arrays)[0].reshape(-1)[0]:
        arrays = call(o.body_subgraph_index, *arrays)
    return arrays


def call_shapes(infer: Infer, o: CallOptions, inputs: Specs, outputs: Specs) -> _Shapes:
    return _agreed([infer(o.subgraph, inputs)], outputs)


def call(call_: Services, o: CallOptions, _i: Specs, _o: Specs, *arrays: Array) -> _Arrays:
    return call_(o.subgraph, *arrays)


def composite_shapes(
    infer: Infer, o: StableHLOCompositeOptions, inputs: Specs, outputs: Specs
) -> _Shapes:
    return _agreed([infer(o.decomposition_subgraph_index, inputs)], outputs)


def composite(
    call_: Services, o: StableHLOCompositeOptions, _i: Specs, _o: Specs, *arrays: Array
) -> _Arrays:
    return call_(o.decomposition_subgraph_index, *arrays)


def once_key(o: CallOnceOptions) -> Hashable:
    """What resources hold when an initialization has run."""
    return "CALL_ONCE", o.init_subgraph_index


def call_once(call_: Services, o: CallOnceOptions, _i: Specs, _o: Specs) -> _Arrays:
    """Only at the interpreter's first call."""
    key = once_key(o)
    if key not in call_.resources:
        call_(o.init_subgraph_index)
        call_.resources[key] = np.True_
    return ()


KERNELS = {
    "CALL": Kernel(call, unknown_shapes, calls=True, inferred_shapes=call_shapes),
    "CALL_ONCE": Kernel(call_once, nothing, calls=True, inferred_shapes=none_declared),
    "IF": Kernel(if_, unknown_shapes, calls=True, inferred_shapes=if_shapes),
    "STABLEHLO_CASE": Kernel(case, unknown_shapes, calls=True, inferred_shapes=case_shapes),
    "STABLEHLO_COMPOSITE": Kernel(
        composite, unknown_shapes, calls=True, inferred_shapes=composite_shapes
    ),
    "STABLEHLO_WHILE": Kernel(while_, unknown_shapes, calls=True, inferred_shapes=while_shapes),
    "WHILE": Kernel(while_, unknown_shapes, calls=True, inferred_shapes=while_shapes),
}
