"""Adds other tools' measurements to the operators of an analysis.

Two kinds of files are read: the results of this package's benchmark and comparison, and a JSON
object of numbers by the name of a tensor, or by "#12" or "12" for an operator of the main subgraph.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxdelegate.analysis.records import ModelAnalysis, SubgraphAnalysis
from jaxdelegate.errors import OptionError
from jaxdelegate.text import plural

_US_PER_MS = 1000.0


def with_latency(analysis: ModelAnalysis, path: str | Path) -> ModelAnalysis:
    """The analysis with `latency_ms` of its main subgraph's operators.

    Operators that XLA fused get equal shares of the measured time. The file is the benchmark's JSON
    with an operator profile, or a JSON object of milliseconds.
    """
    record = _read(path)
    profile = record.get("op_profile")
    if isinstance(profile, dict) and "nodes" in profile:
        values = _shares(_profile_rows(profile, path), path)
    else:
        values = _plain_values(record, analysis.subgraphs[0], path)
    return _with(analysis, path, "latency_ms", values)


def with_error(analysis: ModelAnalysis, path: str | Path) -> ModelAnalysis:
    """The analysis with `error` of its main subgraph's operators.

    The file is inference_diff's JSON with layers, or a JSON object of errors. In a comparison of
    layers, an operator's error is the one that it adds itself where that was measured, else that of
    the whole run, relative to the tensor's largest value. The worst output counts.
    """
    record = _read(path)
    layers = record.get("layers")
    if isinstance(layers, dict) and "layers" in layers:
        values: dict[int, float] = {}
        for layer in _rows(layers["layers"], path):
            error = _layer_error(layer)
            if error is not None:
                node = _node(layer.get("node"), path)
                values[node] = max(error, values.get(node, 0.0))
    else:
        values = _plain_values(record, analysis.subgraphs[0], path)
    return _with(analysis, path, "error", values)


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


def _rows(rows: object, path: str | Path) -> list[Mapping[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise OptionError(f"{path}: expected a list of objects, got {type(rows).__name__}")
    return rows


def _profile_rows(profile: Mapping[str, Any], path: str | Path) -> list[Mapping[str, Any]]:
    # Rows inside partitions have the times of operators, other rows those of whole partitions.
    inside = _rows(profile.get("inside_partitions") or [], path)
    known = {node for row in inside for node in row.get("nodes", ())}
    rows = _rows(profile["nodes"] or [], path)
    return [*(row for row in rows if not known & set(row.get("nodes", ()))), *inside]


def _shares(rows: list[Mapping[str, Any]], path: str | Path) -> dict[int, float]:
    values: dict[int, float] = {}
    for row in rows:
        nodes, times = row.get("nodes") or [], row.get("us")
        average = times.get("avg") if isinstance(times, dict) else None
        if not isinstance(average, int | float):
            raise OptionError(f"{path}: op_profile: expected us.avg in every row, got {times!r}")
        for node in nodes:
            share = average / len(nodes) / _US_PER_MS
            values[_node(node, path)] = values.get(_node(node, path), 0.0) + share
    return values


def _node(node: object, path: str | Path) -> int:
    if not isinstance(node, int) or isinstance(node, bool):
        raise OptionError(f"{path}: expected an operator's index, got {node!r}")
    return node


def _layer_error(layer: Mapping[str, Any]) -> float | None:
    own = layer.get("local") or layer.get("tensor") or {}
    for name in ("relative_to_largest", "max_abs"):
        if isinstance(own.get(name), int | float):
            return float(own[name])
    return None


def _plain_values(
    record: Mapping[str, Any], subgraph: SubgraphAnalysis, path: str | Path
) -> dict[int, float]:
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


def _with(
    analysis: ModelAnalysis, path: str | Path, field: str, values: Mapping[int, float]
) -> ModelAnalysis:
    """The analysis with this field of the main subgraph's operators; None: no value."""
    main = analysis.subgraphs[0]
    count = len(main.operators)
    beyond = [i for i in values if not 0 <= i < count]
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
