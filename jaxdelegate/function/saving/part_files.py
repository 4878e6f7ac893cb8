"""The file of a part of a model, or of a model for a batch."""

import dataclasses

from jaxdelegate.errors import InterpreterError, ModelError
from jaxdelegate.function.signatures import selected
from jaxdelegate.function.views import View
from jaxdelegate.model.parts import with_part
from jaxdelegate.model.records import Model, Subgraph, Tensor
from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.passes.batched_graph import batched_graph
from jaxdelegate.passes.limits import Limits
from jaxdelegate.passes.propagation import Subgraphs
from jaxdelegate.plan.planner import EntryPoint
from jaxdelegate.text import printable

_INSTEAD = (
    "save the model without batched() and run it for each image, or write its StableHLO: "
    "model.export(batch=...)"
)


def part_file(file: Model, view: View) -> bytes:
    """The content of a .tflite with what a view selects.

    Raises:
        ModelError: a .tflite cannot express this, or the file cannot be rewritten.
    """
    part = selected(file, view)
    _check_ends(part.subgraphs[0])
    part = _with_known_inputs(file, part, view.limits)
    if view.batch is not None:
        part = _batched(part, view.batch, view.limits)
    return with_part(file, part, "saving a part" if view.is_cut else "saving a batch")


def _check_ends(main: Subgraph) -> None:
    for i in (*main.inputs, *main.outputs):
        tensor = main.tensors[i]
        if tensor.dtype in HANDLES:
            raise ModelError(
                f"save: tensor {i} {tensor.name!r} is a {tensor.type.name.lower()}, which LiteRT "
                "cannot take or return; cut the model at tensors with values"
            )


def _with_known_inputs(file: Model, part: Model, limits: Limits) -> Model:
    """The part, whose inputs have the shapes that the whole file gives them.

    A file may declare any shape for a tensor that operators compute.
    """
    main = part.subgraphs[0]
    if set(main.inputs) <= set(file.subgraphs[0].inputs):
        return part
    entry = EntryPoint(file.subgraphs[0], Subgraphs(file.subgraphs), limits)
    try:
        specs = entry.specs(entry.declared_shapes)
    except InterpreterError:  # an operator that only a runtime with its kernel can resolve
        return part

    def known(tensor: Tensor) -> Tensor:
        spec = specs[tensor.index]
        if tensor.index not in main.inputs or spec.is_dynamic or spec.shape == tensor.shape:
            return tensor
        free = tensor.shape_signature or ()
        signature = free if len(free) == len(spec.shape) else None
        return dataclasses.replace(
            tensor, shape=spec.shape, shape_signature=signature, has_rank=True
        )

    tensors = tuple(known(t) if t.index < len(specs) else t for t in main.tensors)
    main = dataclasses.replace(main, tensors=tensors)
    return dataclasses.replace(part, subgraphs=(main, *part.subgraphs[1:]))


def _batched(part: Model, batch: int | str, limits: Limits) -> Model:
    """The model in which the main subgraph, and those of signatures, compute a batch."""
    entries = {0, *(s.subgraph for s in part.signatures)}
    size = batch if isinstance(batch, int) else None
    known = Subgraphs(part.subgraphs)

    def batched(subgraph: Subgraph) -> Subgraph:
        try:
            return batched_graph(subgraph, known, size, limits)
        except InterpreterError as error:
            name = printable(subgraph.name) or f"subgraph {subgraph.index}"
            raise ModelError(
                f"save: batched({batch!r}): a .tflite cannot hold a batch of {name}: {error}; "
                f"{_INSTEAD}"
            ) from error

    return dataclasses.replace(
        part,
        subgraphs=tuple(batched(s) if s.index in entries else s for s in part.subgraphs),
    )
