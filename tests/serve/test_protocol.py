"""Requests and responses without HTTP: JSON and binary data to arrays and back."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.v2 import json_messages
from jaxdelegate.serve.v2.tensors import joined_bytes, name_of, split_bytes
from tests.serve.fakes import echo, tensor

DTYPES = {
    "BOOL": bool,
    "UINT8": "u1",
    "UINT16": "u2",
    "UINT32": "u4",
    "UINT64": "u8",
    "INT8": "i1",
    "INT16": "i2",
    "INT32": "i4",
    "INT64": "i8",
    "FP16": "f2",
    "FP32": "f4",
    "FP64": "f8",
    "BF16": ml_dtypes.bfloat16,
    "BYTES": object,
}


def values(name: str) -> np.ndarray:
    """Six elements, including the largest and smallest."""
    dtype = np.dtype(DTYPES[name])
    if dtype.kind == "O":
        return np.array([b"", b"a", "ü".encode(), b"\0\n", b"x" * 300, b"{}"], object)
    if dtype.kind == "b":
        return np.array([True, False, True, True, False, False])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([limits.min, limits.max, 0, 1, 2, 100], dtype)
    limits = ml_dtypes.finfo(dtype)
    return np.array([limits.min, limits.max, 0.1, -0.0, np.inf, 1e-3], dtype)


def json_entry(name: str, array: np.ndarray, nested: bool) -> dict[str, Any]:
    data = array if nested else array.ravel()
    listed = data.tolist()
    if name == "BYTES":
        text = np.array([e.decode() for e in array.ravel()], object).reshape(data.shape)
        listed = text.tolist()
    return {"name": "x", "datatype": name, "shape": list(array.shape), "data": listed}


def encoded(*arguments: Any) -> tuple[bytes, int | None]:
    pieces, length = json_messages.encode(*arguments)
    return b"".join(pieces), length


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", DTYPES)
def test_json_of_every_datatype_survives_a_round_trip(name: str, nested: bool) -> None:
    array = values(name).reshape(2, 3)
    model = echo("m", tensor("x", DTYPES[name], -1, 3))
    body = json.dumps({"id": "7", "inputs": [json_entry(name, array, nested)]}).encode()
    decoded = json_messages.decode(body, None, model)
    np.testing.assert_array_equal(decoded.inputs["x"], array)
    assert decoded.inputs["x"].dtype == array.dtype
    answer, length = encoded(decoded, model, decoded.inputs)
    assert length is None
    fields = json.loads(answer)
    assert (fields["model_name"], fields["model_version"], fields["id"]) == ("m", "1", "7")
    (output,) = fields["outputs"]
    assert output == json_entry(name, array, nested=False)


@pytest.mark.parametrize("name", DTYPES)
def test_binary_data_of_every_datatype_survives_a_round_trip(name: str) -> None:
    array = values(name).reshape(2, 3)
    model = echo("m", tensor("x", DTYPES[name], -1, 3))
    raw = joined_bytes(array) if name == "BYTES" else array.tobytes()
    entry = {
        "name": "x",
        "datatype": name,
        "shape": [2, 3],
        "parameters": {"binary_data_size": len(raw)},
    }
    fields = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    text = json.dumps(fields).encode()
    decoded = json_messages.decode(text + raw, len(text), model)
    given = decoded.inputs["x"]
    np.testing.assert_array_equal(given, array)
    assert given.dtype == array.dtype
    answer, length = encoded(decoded, model, {"x": given})
    assert length is not None
    assert answer[length:] == raw
    assert json.loads(answer[:length])["outputs"] == [entry]


def test_binary_data_is_not_copied() -> None:
    model = echo("m", tensor("x", "f4", -1))
    entry = {
        "name": "x",
        "datatype": "FP32",
        "shape": [4],
        "parameters": {"binary_data_size": 16},
    }
    text = json.dumps({"inputs": [entry]}).encode()
    body = text + np.arange(4, dtype="f4").tobytes()
    (array,) = json_messages.decode(body, len(text), model).inputs.values()
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))
    assert not array.flags.writeable


def test_constants_are_numbers_of_float_types() -> None:
    """Triton and Python's json read and write them like this."""
    model = echo("m", tensor("x", "f4", -1))
    text = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[3],"data":[NaN,Infinity,-Infinity]}]}'
    )
    decoded = json_messages.decode(text, None, model)
    array = decoded.inputs["x"]
    np.testing.assert_array_equal(array, np.array([np.nan, np.inf, -np.inf], "f4"))
    answer, _ = encoded(decoded, model, {"x": array})
    assert b'"data":[NaN, Infinity, -Infinity]' in answer or b"[NaN,Infinity,-Infinity]" in answer


def test_outputs_have_the_requested_order_and_form() -> None:
    model = echo("m", tensor("a", "i4", -1), tensor("b", "i4", -1))
    entries = [{"name": n, "datatype": "INT32", "shape": [1], "data": [5]} for n in "ab"]
    outputs = [{"name": "b", "parameters": {"binary_data": False}}, {"name": "a"}]
    fields = {"inputs": entries, "outputs": outputs, "parameters": {"binary_data_output": True}}
    decoded = json_messages.decode(json.dumps(fields).encode(), None, model)
    answer, length = encoded(decoded, model, decoded.inputs)
    first, second = json.loads(answer[:length])["outputs"]
    assert (first["name"], first["data"]) == ("b", [5])
    assert (second["name"], second["parameters"]) == ("a", {"binary_data_size": 4})
    assert answer[length:] == np.int32(5).tobytes()


def test_unknown_fields_and_parameters_are_tolerated() -> None:
    model = echo("m", tensor("x", "i4", -1))
    entry = {
        "name": "x",
        "datatype": "INT32",
        "shape": [1],
        "data": [5],
        "parameters": {"content_type": "np"},
        "more": None,
    }
    fields = {"model_name": "other", "inputs": [entry], "parameters": {"mine": 1.5, "b": True}}
    decoded = json_messages.decode(json.dumps(fields).encode(), None, model)
    assert decoded.parameters == {"mine": 1.5, "b": True}


def test_a_large_body_is_read_like_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = echo("m", tensor("x", "f8", -1), tensor("n", "i8", -1))
    x, n = np.linspace(-1, 1, 1000), np.arange(1000) - 500
    entries = [
        {"name": "x", "datatype": "FP64", "shape": [1000], "data": x.tolist()},
        {"name": "n", "datatype": "INT64", "shape": [1000], "data": n.tolist()},
    ]
    monkeypatch.setattr("jaxdelegate.serve.v2.json_text._STEP", 50)
    monkeypatch.setattr(json_messages, "_PART", 7)
    monkeypatch.setattr("jaxdelegate.serve.v2.tensors._PART", 7)
    decoded = json_messages.decode(json.dumps({"inputs": entries}).encode(), None, model)
    np.testing.assert_array_equal(decoded.inputs["x"], x)
    np.testing.assert_array_equal(decoded.inputs["n"], n)
    answer, _ = encoded(decoded, model, decoded.inputs)
    assert [o["data"] for o in json.loads(answer)["outputs"]] == [x.tolist(), n.tolist()]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3), ()])
def test_empty_and_scalar_tensors(shape: tuple[int, ...]) -> None:
    model = echo("m", tensor("x", "f4", *[-1] * len(shape)))
    data = np.ones(shape, "f4").ravel().tolist()
    entry = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
    decoded = json_messages.decode(json.dumps({"inputs": [entry]}).encode(), None, model)
    assert decoded.inputs["x"].shape == shape


def test_bytes_that_are_not_text_need_binary_data() -> None:
    model = echo("m", tensor("x", object, -1))
    entry = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    decoded = json_messages.decode(json.dumps({"inputs": [entry]}).encode(), None, model)
    with pytest.raises(RequestError, match="request binary data"):
        encoded(decoded, model, {"x": np.array([b"\xff"], object)})


def test_split_bytes_inverts_joined_bytes(rng: np.random.Generator) -> None:
    found = [rng.bytes(int(n)) for n in rng.integers(0, 40, 50)]
    array = np.empty(50, object)
    array[:] = found
    assert split_bytes(memoryview(joined_bytes(array)), "x") == found
    assert joined_bytes(np.array(["ü", "b"])) == joined_bytes(np.array(["ü".encode(), b"b"]))


def test_a_dtype_without_a_name_is_refused() -> None:
    with pytest.raises(RequestError, match="no datatype for complex64"):
        name_of(np.dtype("c8"))
