"""quantization_sensitivity: ranks operators by the output error of quantizing them."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import ModelError, TensorError, check_least
from jaxdelegate.function.files import load
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.model import CallableModel
from jaxdelegate.function.subgraph import SubgraphFunction
from jaxdelegate.function.views import View
from jaxdelegate.model.records import Model, Operator, Subgraph
from jaxdelegate.passes.limits import Limits
from jaxdelegate.sensitivity import samples as sampling
from jaxdelegate.sensitivity import variants as planning
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
from jaxdelegate.text import plural, printable
from jaxdelegate.waiting import waiting

Source = str | os.PathLike[str] | bytes

_RANDOM_SAMPLES = 8


def quantization_sensitivity(
    model: Source | CallableModel,
    inputs: Sequence[Any] | str | None = None,
    schemes: str = ",".join(SCHEMES),
    *,
    num_samples: int = _RANDOM_SAMPLES,
    seed: int = 0,
) -> SensitivityReport:
    """Rank the operators of a float network by the output error of quantizing each of them alone.

    Nothing is quantized: one compiled program simulates the rounding of weights and activations at
    one operator after the other. The inputs calibrate the ranges of activations, and the outputs on
    them are compared with the float network's. Only the main subgraph is ranked.

    Args:
        model: a path, the file's content, or the result of `jaxdelegate.load`, also a part of it
            (`until`).
        inputs: samples, each an array (for a model with one input), arrays in the inputs' order, or
            a dictionary by their names; or the names of files and folders in the format of
            `--inputs`. None: seeded random samples.
        schemes: names of `SCHEMES`, separated by commas; the first one ranks.
        num_samples: the number of random samples.
        seed: of the random samples.

    Raises:
        DelegationError: XLA cannot run an operator.
        ModelError: the file cannot be read, or no operator can be quantized.
        OptionError: unknown schemes, or files without samples.
        TensorError: samples that do not match the model, or outputs that are not finite.
    """
    chosen = named(schemes)
    loaded = model if isinstance(model, CallableModel) else load(model)
    graph = loaded.graph
    main = graph.subgraphs[0]
    arrays = _samples(main, inputs, num_samples, seed)
    simulation = _simulation(loaded, main, arrays[0])
    if not simulation.outputs:
        raise ModelError(
            f"{printable(graph.source)}: no output is float32, so there is nothing to compare"
        )
    possible, left = _possible(graph, simulation, chosen)
    operators = list({operator.index: operator for operator, _ in possible}.values())
    tensors = planning.calibrated(operators, simulation.specs)
    ranges = simulation.ranges(arrays, tensors)
    variants = [planning.variant(s, o, simulation.specs, ranges) for o, s in possible]
    count = plural(len(operators), "operator")
    with waiting(f"quantizing {count}, one at a time; fewer schemes and samples take less"):
        errors = _errors(simulation.deviation(arrays, variants), simulation)
    measured = list(zip(variants, errors, strict=True))
    rows = [_row(main, operator, measured) for operator in operators]
    rank = chosen[0].name
    rows.sort(key=lambda o: -o.errors[rank].error if rank in o.errors else 1)
    n_rows = simulation.specs[simulation.outputs[0]].shape[0] if simulation.classes else 0
    return SensitivityReport(
        source=os.path.basename(graph.source),
        schemes=tuple(s.name for s in chosen),
        samples=len(arrays),
        is_random=inputs is None,
        rows=n_rows * len(arrays) or None,
        operators=tuple(rows),
        left=tuple(LeftOperator(o.index, o.name, _names(main, o), why) for o, why in left),
        whole=_whole(chosen, arrays, simulation, variants),
        inputs=tuple(main.tensors[i].name for i in main.inputs),
        outputs=tuple(main.tensors[i].name for i in main.outputs),
    )


def _samples(
    main: Subgraph, inputs: Sequence[Any] | str | None, count: int, seed: int
) -> list[Sample]:
    tensors = [main.tensors[i] for i in main.inputs]
    if inputs is None:
        check_least(1, num_samples=count)
        return sampling.random(tensors, count, seed)
    return sampling.checked(
        tensors, sampling.read(inputs, tensors) if isinstance(inputs, str) else inputs
    )


def _simulation(loaded: CallableModel, main: Subgraph, sample: Sample) -> Simulation:
    functions = Functions(loaded.graph, View(loaded.options, Limits()), loaded.source)
    function = functions.function_of(None)
    assert isinstance(function, SubgraphFunction)
    shapes = tuple(sample[i].shape for i in main.inputs)
    return Simulation(function.lowered(shapes, loaded.params))


def _possible(
    graph: Model, simulation: Simulation, schemes: Sequence[Scheme]
) -> tuple[list[tuple[Operator, Scheme]], list[tuple[Operator, str]]]:
    tensors, possible, left = graph.subgraphs[0].tensors, [], []
    for step in simulation.steps:
        op = step.operator
        reasons = [planning.why_not(s, op, simulation.specs, tensors) for s in schemes]
        possible += [(op, s) for s, why in zip(schemes, reasons, strict=True) if why is None]
        if None not in reasons:
            left.append((op, next(filter(None, reasons))))
    if not possible:
        why = left[0][1] if left else "it has no operators that run"
        raise ModelError(f"{printable(graph.source)}: no operator can be quantized: {why}")
    return possible, left


def _whole(
    schemes: Sequence[Scheme],
    arrays: Sequence[Sample],
    simulation: Simulation,
    variants: Sequence[Variant],
) -> dict[str, OutputError]:
    numbers = {s.name: [n for n, v in enumerate(variants) if v.scheme is s] for s in schemes}
    used = {name: chosen for name, chosen in numbers.items() if chosen}
    with waiting("quantizing all operators at once, in each scheme"):
        deviation = simulation.together(arrays, variants, [*used.values()])
    return dict(zip(used, _errors(deviation, simulation), strict=True))


def _errors(deviation: Deviation, simulation: Simulation) -> list[OutputError]:
    if not np.isfinite(deviation.signal).all():
        raise TensorError(
            "inputs: the outputs of the float network on these samples are infinite or NaN"
        )
    with np.errstate(all="ignore"):
        relative = np.where(deviation.noise == 0, 0, np.sqrt(deviation.noise / deviation.signal))
    worst = np.where(np.isnan(relative), math.inf, relative).max(-1)
    return [
        OutputError(float(error), int(changes) if simulation.classes else None)
        for error, changes in zip(worst, deviation.changes, strict=True)
    ]


def _row(
    main: Subgraph, operator: Operator, measured: Sequence[tuple[Variant, OutputError]]
) -> OperatorSensitivity:
    names = _names(main, operator)
    own = [(v, error) for v, error in measured if v.operator == operator.index]
    return OperatorSensitivity(
        index=operator.index,
        op=operator.name,
        tensor=names[0],
        tensors=names,
        bytes_saved={v.scheme.name: v.bytes_saved for v, _ in own},
        errors={v.scheme.name: error for v, error in own},
        reads_input=not set(main.inputs).isdisjoint(operator.inputs),
        writes_output=not set(main.outputs).isdisjoint(operator.outputs),
    )


def _names(main: Subgraph, operator: Operator) -> tuple[str, ...]:
    return tuple(main.tensors[i].name for i in operator.outputs if i >= 0)
