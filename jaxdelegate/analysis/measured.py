"""Adds other tools' measurements to the operators of an analysis.

Two kinds of files are read: the results of this package's benchmark and comparison, and a JSON
object of numbers by the name of a tensor, or by "#12" or "12" for an operator of the main subgraph.
"""

import collections
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxdelegate.analysis.records import ModelAnalysis, SubgraphAnalysis
from jaxdelegate.errors import OptionError
from jaxdelegate.text import plural

_US_PER_MS = 1000.0

_Record = Mapping[str, Any]
_Values = Mapping[int, float]  # by operator


def with_latency(analysis: ModelAnalysis, path: str | Path) -> ModelAnalysis:
    """The analysis with `latency_ms` of its main subgraph's operators.

    Operators that XLA fused get equal shares of the measured time. The file is the benchmark's JSON
    with an operator profile, or a JSON object of milliseconds.
    """
    return _with(analysis, path, "latency_ms", _latencies)


def with_error(analysis: ModelAnalysis, path: str | Path) -> ModelAnalysis:
    """The analysis with `error` of its main subgraph's operators.

    The file is inference_diff's JSON with layers, or a JSON object of errors. In a comparison of
    layers, an operator's error is the one that it adds itself where that was measured, else that of
    the whole run, relative to the tensor's largest value. The worst output counts.
    """
    return _with(analysis, path, "error", _errors)


def _with(
    analysis: ModelAnalysis,
    path: str | Path,
    field: str,
    read: Callable[[_Record], _Values | None],
) -> ModelAnalysis:
    """`read` returns None if the record is an object of numbers by name."""
    main, record = analysis.subgraphs[0], _read(path)
    try:
        values = read(record)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(f"{path}: not a result with values of operators: {error}") from error
    if values is None:
        values = _plain_values(record, main, path)
    count = len(main.operators)
    beyond = [index for index in values if index not in range(count)]
    if beyond:
        raise OptionError(
            f"{path}: the model has {plural(count, 'operator')}, got operator {beyond[0]}"
        )
    operators = []
    for operator in main.operators:
        value: dict[str, Any] = {field: values.get(operator.index)}
        operators.append(dataclasses.replace(operator, **value))
    main = dataclasses.replace(main, operators=tuple(operators))
    return dataclasses.replace(analysis, subgraphs=(main, *analysis.subgraphs[1:]))


def _read(path: str | Path) -> dict[str, Any]:
    try:
        record = json.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise OptionError(f"{path}: not a JSON file: {error}") from error
    if isinstance(record, list) and len(record) == 1:
        record = record[0]
    if not isinstance(record, dict):
        raise OptionError(f"{path}: expected a JSON object, got {type(record).__name__}")
    whole_runs = {"inference_ms", "outputs"} & record.keys()  # a benchmark, a comparison
    if whole_runs and not (record.get("op_profile") or record.get("layers")):
        raise OptionError(f"{path}: the result has no values of single operators")
    return record


def _latencies(record: _Record) -> _Values | None:
    profile = record.get("op_profile")
    if not profile:
        return None
    # Rows inside partitions have the times of operators, other rows those of whole partitions.
    inside = profile.get("inside_partitions") or []
    known = {node for row in inside for node in row["nodes"]}
    rows = [row for row in profile["nodes"] if known.isdisjoint(row["nodes"])]
    values = collections.defaultdict[int, float](float)
    for row in (*rows, *inside):
        for node in row["nodes"]:
            values[node] += row["us"]["avg"] / len(row["nodes"]) / _US_PER_MS
    return values


def _errors(record: _Record) -> _Values | None:
    if not record.get("layers"):
        return None
    values: dict[int, float] = {}
    for layer in record["layers"]["layers"]:
        error = layer["local"] or layer["tensor"]
        value = error["relative_to_largest"]
        value = error["max_abs"] if value is None else value
        if value is not None:
            values[layer["node"]] = max(float(value), values.get(layer["node"], 0.0))
    return values


def _plain_values(record: _Record, subgraph: SubgraphAnalysis, path: str | Path) -> _Values:
    producer = {t: op.index for op in subgraph.operators for t in op.outputs}
    by_name = {t.name: producer[t.index] for t in subgraph.tensors if t.index in producer}
    values: dict[int, float] = {}
    for key, value in record.items():
        digits = key.removeprefix("#")
        node = by_name.get(key, int(digits) if digits.isascii() and digits.isdigit() else None)
        if node is None:
            raise OptionError(
                f"{path}: {key!r} is neither an operator nor a computed tensor of the model"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise OptionError(f"{path}: {key!r}: expected a number, got {value!r}")
        values[node] = max(float(value), values.get(node, -math.inf))
    return values
