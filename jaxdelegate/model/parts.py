"""Writes a part of a model: some of its operators, and tensors with other shapes or constants."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Model, SignatureDef, Subgraph
from jaxdelegate.model.rewriting import Rewriting
from jaxdelegate.op_lowering.options import Options


def with_part(file: Model, part: Model, purpose: str) -> bytes:
    """The content of a file with only what `part` contains.

    That is the subgraphs to which the main one and the signatures lead, with the tensors, constants
    and operator codes that they use. A ZIP archive after the model is left out if `part` has other
    metadata. Errors name the purpose, see `Rewriting`.

    Args:
        file: the whole model.
        part: a version of `file` with other metadata, signatures, inputs, outputs, and fewer
            operators. Its tensors are the file's, some with other shapes, followed by those that
            operators read or write instead of the file's, with other constants.
        purpose: why the file is rewritten.
    """
    rewriting = Rewriting(file, purpose)
    t = rewriting.t
    for old, new in zip(file.subgraphs, part.subgraphs, strict=True):
        if new is not old:
            _write_subgraph(rewriting, old, new)
    if part.signatures is not file.signatures:
        t.signatureDefs = [_signature(s) for s in part.signatures]
    if part.metadata is not file.metadata:
        names = [(m.name or b"").decode(errors="replace") for m in t.metadata or []]
        pairs = zip(t.metadata or [], names, strict=True)
        t.metadata = [m for m, name in pairs if name in part.metadata]
        t.metadataBuffer = None
    for old, new in zip(file.subgraphs, part.subgraphs, strict=True):
        if new is not old:
            rewriting.drop_tensors(new.index, range(len(t.subgraphs[new.index].tensors)))
    _drop_subgraphs(t, part)
    rewriting.drop_unread()
    return rewriting.content(with_files=part.metadata is file.metadata)


def _write_subgraph(rewriting: Rewriting, old: Subgraph, new: Subgraph) -> None:
    table = rewriting.t.subgraphs[new.index]
    table.operators = [table.operators[operator.index] for operator in new.operators]
    origins = {}
    for operator, written in zip(new.operators, table.operators, strict=True):
        before = old.operators[operator.index]
        for field in ("inputs", "outputs"):
            ends = getattr(before, field), getattr(operator, field)
            if ends[0] != ends[1]:
                setattr(written, field, list(ends[1]))
                origins.update({i: j for j, i in zip(*ends, strict=True) if i >= len(old.tensors)})
        _write_options(written, before.options, operator.options)
    table.tensors += [
        copy.deepcopy(table.tensors[origins[i]]) for i in range(len(old.tensors), len(new.tensors))
    ]
    _write_tensors(rewriting, table.tensors, old, new)
    table.inputs, table.outputs = list(new.inputs), list(new.outputs)


def _write_tensors(rewriting: Rewriting, tables: list[Any], old: Subgraph, new: Subgraph) -> None:
    count = len(old.tensors)
    for tensor, written in zip(new.tensors, tables, strict=True):
        if tensor.index < count and tensor is old.tensors[tensor.index]:
            continue
        signature = tensor.shape_signature
        written.shape, written.hasRank = list(tensor.shape), tensor.has_rank
        written.shapeSignature = None if signature is None else list(signature)
        if tensor.index >= count:
            written.name = tensor.name.encode()
        if tensor.index >= count and tensor.stored is not None:
            written.buffer = rewriting.add_buffer(tensor.stored)


def _write_options(operator: Any, old: Options, new: Options) -> None:
    """Set the fields that differ in an operator's table of options."""
    if new == old:
        return
    kind = f"{type(new).__name__}T"
    tables = (operator.builtinOptions, operator.builtinOptions2)
    written = next(table for table in tables if type(table).__name__ == kind)
    for field in dataclasses.fields(new):
        value = getattr(new, field.name)
        if value != getattr(old, field.name):
            head, *rest = field.name.split("_")
            name = head + "".join(part.capitalize() for part in rest)
            setattr(written, name, list(value) if isinstance(value, tuple) else value)


def _signature(s: SignatureDef) -> Any:
    t = schema.SignatureDefT()
    t.signatureKey, t.subgraphIndex = s.key, s.subgraph
    t.inputs, t.outputs = list(_maps(s.inputs)), list(_maps(s.outputs))
    return t


def _maps(ends: Mapping[str, int]) -> Iterator[Any]:
    for name, index in ends.items():
        t = schema.TensorMapT()
        t.name, t.tensorIndex = name, index
        yield t


def _drop_subgraphs(t: Any, part: Model) -> None:
    """Remove the subgraphs to which nothing leads."""
    pending, reached = [0, *(s.subgraph for s in part.signatures)], set()
    while pending:
        subgraph = pending.pop()
        if subgraph not in reached:
            reached.add(subgraph)
            pending += [
                i
                for o in part.subgraphs[subgraph].operators
                for _, i in called_subgraphs(o.options)
            ]
    kept = sorted(reached)
    if len(kept) == len(t.subgraphs):
        return
    number = {old: new for new, old in enumerate(kept)}
    for i in kept:
        for operator, written in zip(
            part.subgraphs[i].operators, t.subgraphs[i].operators or [], strict=True
        ):
            _write_options(written, operator.options, _renumbered(operator.options, number))
    for signature in t.signatureDefs or []:
        signature.subgraphIndex = number[signature.subgraphIndex]
    t.subgraphs = [t.subgraphs[i] for i in kept]


def _renumbered(options: Options, number: Mapping[int, int]) -> Options:
    """The options with other indices of the subgraphs that the operator calls."""
    new: dict[str, Any] = {}
    for field, _ in called_subgraphs(options):
        old = getattr(options, field)
        is_several = isinstance(old, tuple)
        new[field] = tuple(number[i] for i in old) if is_several else number[old]
    return dataclasses.replace(options, **new) if new else options
