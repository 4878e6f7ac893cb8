"""Fill a program cache ahead of time: `jaxdelegate compile` without the command line."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import OptionError
from jaxdelegate.model.records import Model, read_model
from jaxdelegate.model.source import ModelSource
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.runtime.subgraph import ModelStore, SubgraphRunner


@dataclasses.dataclass(frozen=True)
class Precompiled:
    """What became of a model's programs: how many were stored, and how many were there already."""

    directory: str
    stored: int
    found: int
    summary: str  # of the delegation of the main subgraph

    def __str__(self) -> str:
        """A line for each of the two."""
        return (
            f"{self.summary}\n"
            f"{self.stored} programs compiled and stored in {self.directory}, "
            f"{self.found} were there already."
        )


def precompile(
    graph: ModelSource, delegate: JaxDelegate, shapes: Mapping[str, Shape] | Sequence[Shape] = ()
) -> Precompiled:
    """Compile every partition of a model's main subgraph and signatures, and keep the programs.

    Args:
        graph: a path, or the content of a file.
        delegate: with `serialization_dir`; its options are part of what is compiled.
        shapes: of the main subgraph's inputs, all in their order or some by name; the others and
            those of further signatures are as declared.

    Raises:
        ModelError: the file is no model.
        OptionError: no JaxDelegate, one without `serialization_dir`, or a shape fits no input.
        InterpreterError: an operator refuses its shapes.
        LoweringError: a partition cannot be compiled.
        CacheWarning: (as a warning) a program could not be stored.
    """
    if not isinstance(delegate, JaxDelegate):
        raise OptionError(f"{type(delegate).__name__} keeps no programs; want a JaxDelegate")
    if delegate.programs is None or delegate.options.serialization_dir is None:
        raise OptionError("serialization_dir: want the directory where programs are kept, got none")
    before = delegate.programs.statistics
    model = read_model(graph)
    store = ModelStore(model.subgraphs, [delegate], os.path.basename(model.source))
    for index in dict.fromkeys((0, *(s.subgraph for s in model.signatures))):
        host = SubgraphRunner(model.subgraphs[index], [delegate], model=store, may_rebatch=True)
        if index == 0:
            for tensor, shape in _by_tensor(model, shapes).items():
                host.resize(tensor, shape)
        host.allocate()
    after = delegate.programs.statistics
    return Precompiled(
        delegate.options.serialization_dir,
        after.stored - before.stored,
        after.loaded - before.loaded,
        delegate.report(0).summary(),
    )


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
