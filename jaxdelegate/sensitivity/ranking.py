"""quantization_sensitivity: operators ranked by what quantizing them does to the output."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import ModelError, OptionError, TensorError
from jaxdelegate.function.functions import Functions, View
from jaxdelegate.function.model import CallableModel, load
from jaxdelegate.function.subgraph import SubgraphFunction
from jaxdelegate.model.records import Model, Operator, Subgraph
from jaxdelegate.passes.limits import Limits
from jaxdelegate.sensitivity import samples as sampling
from jaxdelegate.sensitivity import variants as planning
from jaxdelegate.sensitivity.grids import Range
from jaxdelegate.sensitivity.records import (
    LeftOperator,
    OperatorSensitivity,
    OutputError,
    SensitivityReport,
)
from jaxdelegate.sensitivity.samples import Sample
from jaxdelegate.sensitivity.schemes import SCHEMES, Scheme, named
from jaxdelegate.sensitivity.simulation import Deviation, Simulation
from jaxdelegate.sensitivity.variants import Variant
from jaxdelegate.text import printable

Source = str | os.PathLike[str] | bytes

_RANDOM = 8


def quantization_sensitivity(
    model: Source | CallableModel,
    inputs: Sequence[Any] | str | None = None,
    schemes: str = ",".join(SCHEMES),
    *,
    num_samples: int = _RANDOM,
    seed: int = 0,
) -> SensitivityReport:
    """Rank the operators of a float network by what quantizing each of them alone would do.

    Nothing is quantized: one compiled program simulates the rounding of weights and activations at
    one operator after the other. Inputs calibrate the ranges of activations, and on them the
    outputs are compared with the float network's. Only the main subgraph is looked at.

    Args:
        model: a path, the file's content, or what `jaxdelegate.load` made of either, also a part
            of it (`until`).
        inputs: samples, each an array (of a model with one input), arrays in the inputs' order, or
            a dictionary by their names; or the names of files and folders as `--inputs` takes
            them. None: seeded random ones.
        schemes: names of `SCHEMES` with commas between; the first one ranks.
        num_samples: how many random ones.
        seed: of the random ones.

    Raises:
        DelegationError: an operator that XLA cannot run.
        ModelError: the file cannot be read, or holds nothing that could be quantized.
        OptionError: unknown schemes, or files that hold no samples.
        TensorError: samples that are not the model's, or outputs that are not finite.
    """
    wanted = named(schemes)
    loaded = model if isinstance(model, CallableModel) else load(model)
    graph = loaded.graph
    main = graph.subgraphs[0]
    arrays = _samples(main, inputs, num_samples, seed)
    simulation = _simulation(loaded, main, arrays[0])
    if not simulation.outputs:
        raise ModelError(
            f"{printable(graph.source)}: no output is float32: there is nothing to compare"
        )
    plan = _Plan.of(graph, main, simulation, wanted)
    ranges = simulation.ranges(arrays, plan.tensors(simulation))
    return _report(
        graph, wanted, arrays, inputs is None, simulation, plan.variants(ranges, simulation)
    )


def _samples(
    main: Subgraph, inputs: Sequence[Any] | str | None, count: int, seed: int
) -> list[Sample]:
    tensors = [main.tensors[i] for i in main.inputs]
    if inputs is None:
        if count < 1:
            raise OptionError(f"num_samples: want a positive number, got {count}")
        return sampling.random(tensors, count, seed)
    return sampling.given(
        tensors, sampling.read(inputs, tensors) if isinstance(inputs, str) else inputs
    )


def _simulation(loaded: CallableModel, main: Subgraph, sample: Sample) -> Simulation:
    functions = Functions(loaded.graph, View(loaded.options, Limits()), loaded.source)
    function = functions.function_of(None)
    assert isinstance(function, SubgraphFunction)
    shapes = tuple(sample[i].shape for i in main.inputs)
    return Simulation(function.lowered(shapes, loaded.params))


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Which operators are quantized in which schemes, and why others are not."""

    graph: Model
    operators: tuple[tuple[Operator, tuple[Scheme, ...]], ...]
    left: tuple[tuple[Operator, str], ...]

    @classmethod
    def of(
        cls, graph: Model, main: Subgraph, simulation: Simulation, schemes: Sequence[Scheme]
    ) -> "_Plan":
        """The plan.

        Raises:
            ModelError: no scheme quantizes any operator.
        """
        operators, left = [], []
        for step in simulation.steps:
            own = step.operator
            reasons = {s: planning.why_not(s, own, simulation.specs, main.tensors) for s in schemes}
            possible = tuple(s for s, reason in reasons.items() if reason is None)
            if possible:
                operators.append((own, possible))
            else:
                left.append((own, next(reason for reason in reasons.values() if reason)))
        if not operators:
            why = left[0][1] if left else "it computes nothing"
            raise ModelError(f"{printable(graph.source)}: no operator could be quantized: {why}")
        return cls(graph, tuple(operators), tuple(left))

    def tensors(self, simulation: Simulation) -> tuple[int, ...]:
        """Those whose range is wanted."""
        return planning.calibrated([o for o, _ in self.operators], simulation.specs)

    def variants(self, ranges: Mapping[int, Range], simulation: Simulation) -> "_Variants":
        """Every operator in each of its schemes, numbered."""
        rows: dict[int, list[tuple[int, Variant]]] = {}
        count = 0
        for operator, schemes in self.operators:
            for scheme in schemes:
                made = planning.variant(scheme, operator, simulation.specs, ranges)
                rows.setdefault(operator.index, []).append((count, made))
                count += 1
        return _Variants(self, rows)


@dataclasses.dataclass(frozen=True)
class _Variants:
    plan: _Plan
    rows: Mapping[int, Sequence[tuple[int, Variant]]]

    def of(self, scheme: Scheme) -> frozenset[int]:
        """The numbers of a scheme's variants."""
        every = (row for rows in self.rows.values() for row in rows)
        return frozenset(number for number, variant in every if variant.scheme == scheme)


def _report(
    graph: Model,
    schemes: Sequence[Scheme],
    arrays: Sequence[Sample],
    is_random: bool,
    simulation: Simulation,
    variants: _Variants,
) -> SensitivityReport:
    main, plan = graph.subgraphs[0], variants.plan
    errors = _errors(simulation.deviation(arrays, variants.rows), simulation)
    tried = [scheme for scheme in schemes if variants.of(scheme)]
    choices = [variants.of(scheme) for scheme in tried]
    together = _errors(simulation.together(arrays, variants.rows, choices), simulation)
    whole = {scheme.name: error for scheme, error in zip(tried, together, strict=True)}
    rows = [
        _row(main, operator, variants.rows[operator.index], errors)
        for operator, _ in plan.operators
    ]
    rank = schemes[0].name
    rows.sort(key=lambda o: -o.errors[rank].error if rank in o.errors else 1)
    judged = simulation.specs[simulation.outputs[0]].shape[0] if simulation.classes else 0
    return SensitivityReport(
        os.path.basename(graph.source),
        tuple(s.name for s in schemes),
        len(arrays),
        is_random,
        judged * len(arrays) or None,
        tuple(rows),
        tuple(LeftOperator(o.index, o.name, _names(main, o), reason) for o, reason in plan.left),
        whole,
        tuple(main.tensors[i].name for i in main.inputs),
        tuple(main.tensors[i].name for i in main.outputs),
    )


def _errors(found: Deviation, simulation: Simulation) -> list[OutputError]:
    """Of each row.

    Raises:
        TensorError: the float network's outputs are not finite.
    """
    if not np.isfinite(found.signal).all():
        raise TensorError("inputs: the float network yields infinities or NaN on these samples")
    with np.errstate(all="ignore"):
        relative = np.where(found.noise == 0, 0, np.sqrt(found.noise / found.signal))
    worst = np.where(np.isnan(relative), math.inf, relative).max(-1)
    return [
        OutputError(float(error), int(changes) if simulation.classes else None)
        for error, changes in zip(worst, found.changes, strict=True)
    ]


def _row(
    main: Subgraph,
    operator: Operator,
    variants: Sequence[tuple[int, Variant]],
    errors: Sequence[OutputError],
) -> OperatorSensitivity:
    names = _names(main, operator)
    return OperatorSensitivity(
        operator.index,
        operator.name,
        names[0],
        names,
        {v.scheme.name: v.bytes_saved for _, v in variants},
        {v.scheme.name: errors[number] for number, v in variants},
        not set(main.inputs).isdisjoint(operator.inputs),
        not set(main.outputs).isdisjoint(operator.outputs),
    )


def _names(main: Subgraph, operator: Operator) -> tuple[str, ...]:
    return tuple(main.tensors[i].name for i in operator.outputs if i >= 0)
