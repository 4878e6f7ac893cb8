"""Compile a model's programs ahead of time: the API of `jaxdelegate compile`."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from jaxdelegate.cache.programs import Statistics
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import OptionError
from jaxdelegate.model.records import Model, read_model
from jaxdelegate.model.source import ModelSource
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.runtime.subgraph import ModelStore, SubgraphRunner


@dataclasses.dataclass(frozen=True)
class Precompiled:
    """How many programs of a model were stored in a directory, and how many it already had."""

    directory: str
    stored: int
    found: int
    summary: str  # of the delegation of the main subgraph

    def __str__(self) -> str:
        stored = f"{self.stored} program{'s' if self.stored != 1 else ''}"
        return (
            f"{self.summary}\n"
            f"{stored} compiled and stored in {self.directory}, {self.found} found there."
        )


def precompile(
    graph: ModelSource, delegate: JaxDelegate, shapes: Mapping[str, Shape] | Sequence[Shape] = ()
) -> Precompiled:
    """Compile every partition of a model's main subgraph and signatures, and store the programs.

    Args:
        graph: a path, or the content of a file.
        delegate: with `serialization_dir`; its options determine the programs.
        shapes: of the main subgraph's inputs, all in order or some by name; other inputs, and those
            of other signatures, have their declared shapes.

    Raises:
        ModelError: the file is not a model.
        OptionError: not a JaxDelegate, no `serialization_dir`, or a shape that fits no input.
        InterpreterError: an operator rejects its shapes.
        LoweringError: a partition cannot be compiled.
        CacheWarning: (as a warning) a program could not be stored.
    """
    if not isinstance(delegate, JaxDelegate):
        raise OptionError(f"expected a JaxDelegate, got {type(delegate).__name__}")
    if not delegate.options.serialization_dir:
        raise OptionError("serialization_dir is required: the directory for the programs")
    before = _statistics(delegate)
    model = read_model(graph)
    store = ModelStore(model.subgraphs, [delegate], os.path.basename(model.source))
    for index in dict.fromkeys((0, *(s.subgraph for s in model.signatures))):
        host = SubgraphRunner(model.subgraphs[index], [delegate], model=store, may_rebatch=True)
        if index == 0:
            for tensor, shape in _by_tensor(model, shapes).items():
                host.resize(tensor, shape)
        host.allocate()
    after = _statistics(delegate)
    return Precompiled(
        delegate.options.serialization_dir,
        after.stored - before.stored,
        after.loaded - before.loaded,
        delegate.report(0).summary(),
    )


def _statistics(delegate: JaxDelegate) -> Statistics:
    return Statistics() if delegate.programs is None else delegate.programs.statistics


def _by_tensor(model: Model, shapes: Mapping[str, Shape] | Sequence[Shape]) -> dict[int, Shape]:
    main = model.subgraphs[0]
    if not isinstance(shapes, Mapping):
        if shapes and len(shapes) != len(main.inputs):
            raise OptionError(f"shapes: the model has {len(main.inputs)} inputs, got {len(shapes)}")
        given = dict(zip(main.inputs, shapes, strict=False))
    else:
        names = {main.tensors[i].name: i for i in main.inputs}
        for name in shapes:
            if name not in names:
                raise OptionError(f"shapes: {name!r} is not among the inputs {sorted(names)}")
        given = {names[name]: shape for name, shape in shapes.items()}
    for index, shape in given.items():
        tensor = main.tensors[index]
        if tensor.has_rank and len(tensor.shape) not in (0, len(shape)):
            raise OptionError(
                f"shapes: input {tensor.name!r} has {len(tensor.shape)} dimensions, "
                f"got {list(shape)}"
            )
    return given
