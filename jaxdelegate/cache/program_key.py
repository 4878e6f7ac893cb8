"""The key of one partition's program, and what to store and load it by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jaxdelegate.cache.constants import ConstantDigests
from jaxdelegate.cache.entry import StoredWeight
from jaxdelegate.cache.environment import environment_parts
from jaxdelegate.cache.key import Key, Part
from jaxdelegate.cache.loading import ModelData
from jaxdelegate.cache.partition_key import (
    KnownModel,
    boundary_parts,
    calls_subgraphs,
    model_part,
    read_constants,
)
from jaxdelegate.cache.sources import confirm, source_parts
from jaxdelegate.digests import PREFERRED

if TYPE_CHECKING:
    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.simple_delegate import DelegateParams


@dataclasses.dataclass(frozen=True)
class ProgramKey(Key):
    """The key of a program, with what storing and loading it need."""

    # Of the model, with the specs of every tensor of a partition. A program of a whole file has
    # numbered results, and its constants need no digests of their own to load it.
    data: ModelData
    model_name: str = ""  # for people
    operators: str = ""  # what the program computes, for people
    calls_subgraphs: bool = True  # whether it depends on subgraphs that operators call
    # Whether the program may depend on all of a file, whose digest the key has.
    is_of_file: bool = False
    folders: tuple[str, ...] = ()  # whose code determines the program, besides others

    @classmethod
    def of_partition(
        cls,
        params: DelegateParams,
        specs: Mapping[int, TensorSpec],
        model: KnownModel,
        settings: Mapping[str, Any],
        jax_config: Part,
        device: Any,
    ) -> ProgramKey:
        """See `ProgramCache.program_key`.

        A TypeError if the options hold a type whose representation may differ between processes, a
        SourceError if the sources that produce programs are not available.
        """
        constants = read_constants(params.nodes, params.outputs, specs)
        of_constants = model.constants.of(constants)
        data = ModelData(_of_program(params, specs), constants, of_constants)
        of_subgraphs = calls_subgraphs(params.nodes)
        parts = {
            **process_parts(settings, device),
            "jax_config": jax_config,
            **model.operators(params.nodes, specs),
            **boundary_parts(params, specs),
            **source_parts(of_subgraphs=of_subgraphs),
            **model_part(of_constants),
        }
        return cls(
            parts=parts,
            data=data,
            model_name=model.name,
            operators=_summary(params, data.specs),
            calls_subgraphs=of_subgraphs,
        )

    def confirm(self) -> None:
        """Check that the sources that produced the program are those that the key describes."""
        confirm(of_subgraphs=self.calls_subgraphs, more=self.folders)

    def constant_digests(self) -> Mapping[int, str]:
        """The digest of each constant's elements, by tensor."""
        return ConstantDigests().of(self.data.constants) if self.is_of_file else self.data.digests

    def data_for(self, weights: Iterable[StoredWeight]) -> ModelData:
        """What loading a program with these weights needs."""
        if not self.is_of_file:
            return self.data
        known = {w.tensor: w.digest for w in weights if w.tensor is not None}
        return self.data._replace(digests=known)


def file_parts(
    file: str,
    settings: Mapping[str, Any],
    jax_config: Part,
    device: Any,
    folders: tuple[str, ...] = (),
) -> dict[str, Part]:
    """The parts of a key that depends on all of a model's file, by its digest; a SourceError."""
    return {
        **process_parts(settings, device),
        "jax_config": jax_config,
        "file": Part.of(file),
        **source_parts(of_subgraphs=True, more=folders),
    }


def process_parts(settings: Mapping[str, Any], device: Any) -> dict[str, Part]:
    """Settings, the digest's algorithm, environment: parts that do not depend on the model."""
    parts = {name: Part.of(value) for name, value in settings.items()}
    return parts | {"digests": Part.of(PREFERRED)} | environment_parts(device)


def _of_program(
    params: DelegateParams, specs: Mapping[int, TensorSpec]
) -> Mapping[int, TensorSpec]:
    """The shapes are those of the program's inputs, outputs and states."""
    if params.slices is None:
        return specs
    states = [i for i, spec in specs.items() if spec.is_variable]
    ends = {*params.inputs, *params.outputs, *states} & specs.keys()
    return {**specs, **params.slices.specs(specs, ends)}


def _summary(params: DelegateParams, specs: Mapping[int, TensorSpec]) -> str:
    """`13 operators, CONV_2D .. SOFTMAX, of int8 [1, 49, 10, 1]`."""
    names = [node.name for node in params.nodes]
    arrays = ", ".join(f"{specs[i].dtype} {list(specs[i].shape)}" for i in params.inputs)
    count = f"{len(names)} operator{'s' if len(names) != 1 else ''}"
    return f"{count}, {' .. '.join(dict.fromkeys((names[0], names[-1])))}, of {arrays}"
