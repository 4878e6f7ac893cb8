"""JSON of requests: read like Python's json, or refused, in bounded memory and time."""

import json
import math
import random
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.v2 import json_messages, json_text
from jaxdelegate.serve.v2.json_text import MAX_TEXTS
from tests.serve.fakes import Fake, echo, tensor

MODELS = {
    "FP64": echo("m", tensor("x", "f8", -1, 3)),
    "INT64": echo("m", tensor("x", "i8", -1, 3)),
    "BYTES": echo("m", tensor("x", object, -1, 3)),
    "BOOL": echo("m", tensor("x", "?", -1, 3)),
}
ELEMENTS: dict[str, list[Any]] = {
    "FP64": [0, -1.5, 1e300, 12345678, math.inf, 0.1],
    "INT64": [0, -(2**63), 300, 7, 2**63 - 1, -1],
    "BYTES": ["", "a,[", '\\"]}{', "ü\n", "\\", "data"],
    "BOOL": [True, False, True, True, False, False],
}


def request(datatype: str, rows: int, *, nested: bool, indent: int | None = None) -> str:
    flat = (ELEMENTS[datatype] * rows)[: 3 * rows]
    data = [flat[at : at + 3] for at in range(0, 3 * rows, 3)] if nested else flat
    entry = {"data": data, "name": "x", "datatype": datatype, "shape": [rows, 3]}
    return json.dumps({"id": '"data":[', "inputs": [entry]}, indent=indent)


def array(text: bytes, model: Fake) -> np.ndarray:
    return json_messages.decode(text, None, model).inputs["x"]


def expected(text: bytes) -> list[Any] | None:
    """The elements as json reads them; None: json refuses the text, or its lists differ."""
    try:
        (entry,) = json.loads(text.decode())["inputs"]
        data = entry["data"]
        if any(isinstance(e, list) for e in data):
            assert [len(row) for row in data] == [3] * entry["shape"][0]
            data = [e for row in data for e in row]
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        return None
    return data


@pytest.mark.parametrize("step", [40, 1 << 16])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("datatype", ELEMENTS)
def test_lists_are_read_as_json_reads_them(
    datatype: str, nested: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "_STEP", step)
    for rows in (1, 2, 5):
        for indent in (None, 1):
            text = request(datatype, rows, nested=nested, indent=indent).encode()
            found = array(text, MODELS[datatype]).ravel().tolist()
            wanted = expected(text)
            assert wanted is not None
            assert found == [e.encode() if isinstance(e, str) else e for e in wanted]


@pytest.mark.parametrize("datatype", ELEMENTS)
def test_changed_texts_are_read_as_json_reads_them_or_refused(
    datatype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some bytes of a request are changed, removed or duplicated."""
    monkeypatch.setattr(json_text, "_STEP", 40)
    choose = random.Random(datatype)
    accepted = 0
    for _ in range(1500):
        text = bytearray(
            request(datatype, choose.randint(1, 4), nested=bool(choose.getrandbits(1))).encode()
        )
        for _ in range(choose.randint(1, 3)):
            at = choose.randrange(len(text))
            other = choose.choice([*'[],"{}:01 \\', "data", ""])
            text[at : at + choose.randint(0, 1)] = other.encode()
        try:
            found = array(bytes(text), MODELS[datatype])
        except RequestError:
            continue
        wanted = expected(bytes(text))
        assert wanted is not None, text
        assert found.ravel().tolist() == [e.encode() if isinstance(e, str) else e for e in wanted]
        accepted += 1
    assert accepted > 50


SIZE = 2 << 20
X = b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1,3],"data":%s}]}'
HOSTILE = {
    "brackets": b"[[[]]]" * (SIZE // 6),
    "lists": b'{"a":[' + b"[]," * (SIZE // 3) + b"0]}",
    "objects": b'{"a":[' + b"{}," * (SIZE // 3) + b"0]}",
    "fields": b"{" + b'"a":0,' * (SIZE // 6) + b'"a":0}',
    "deep": b"[" * SIZE,
    "numbers": b'{"a":[' + b"300," * (SIZE // 4) + b"0]}",
    "id": b'{"id":"' + b"x" * SIZE + b'"}',
    "data-lists": X % (b"[" + b"[]," * (SIZE // 3) + b"[]]"),
    "data-deep": X % (b"[" * (SIZE // 2) + b"]" * (SIZE // 2)),
    "data-deep-lists": X % (b"[" + b"[[[]]]," * (SIZE // 7) + b"[]]"),
    "data-objects": X % (b"[" + b"{}," * (SIZE // 3) + b"{}]"),
    "data-numbers": X % (b"[" + b"300," * (SIZE // 4) + b"1]"),
    "data-strings": X % (b"[" + b'"ab",' * (SIZE // 5) + b'"a"]'),
    "data-spaces": X % (b"[1,2," + b" " * SIZE + b"3]"),
    "data-digits": X % (b"[1,2," + b"1" * SIZE + b"]"),
    "data-nested-numbers": X % (b"[[" + b"300," * (SIZE // 4) + b"1]]"),
    "data-without-end": X[:60] + b"[" + b"1," * (SIZE // 2),
    "many-data": b'{"inputs":[' + b'{"data":[1]},' * (SIZE // 200) + b"0]}",
    "other-data": b'{"x":{"data":[' + b"[]," * (SIZE // 3) + b"0]}}",
    "escaped": b'{"inputs":[{"d\\u0061ta":[' + b"[]," * (SIZE // 3) + b"0]}]}",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_refused_request_takes_little_memory(what: str) -> None:
    """Objects of its JSON would take 8 to 60 times its size."""
    text = HOSTILE[what]
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as error:
            array(text, MODELS["FP64"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(error.value)) < 600
    assert peak < 2 * SIZE + (10 << 20)


def test_short_objects_within_the_outline_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_text, "MAX_OUTLINE", 1 << 16)
    text = b'{"a":[' + b"[]," * (json_text.MAX_OUTLINE // 3 - 9) + b"0]}"
    tracemalloc.start()
    with pytest.raises(RequestError, match="inputs: missing"):
        array(text, MODELS["FP64"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_list_of_many_numbers_takes_the_memory_of_its_array() -> None:
    count = 100_000
    text = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"data":[%s]}]}'
    body = text % (count, b",".join([b"300"] * count))
    tracemalloc.start()
    found = array(body, echo("m", tensor("x", "f4", -1)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.sum() == 300 * count
    assert peak < 2 * found.nbytes + (1 << 20)


def test_too_many_strings_are_refused_before_they_are_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_text, "MAX_TEXTS", 1000)
    monkeypatch.setattr(json_text, "_STEP", 100)
    text = b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1,3],"data":[%s"a"]}]}'
    with pytest.raises(RequestError, match="at most 1000 strings"):
        array(text % (b'"a",[],' * 500), MODELS["BYTES"])
    monkeypatch.setattr(json_text, "MAX_TEXT_BYTES", 1000)
    with pytest.raises(RequestError, match="and 1000 bytes, got more; send binary data"):
        array(text % (b'"' + b"x" * 1000 + b'",'), MODELS["BYTES"])
    entry = {"name": "x", "datatype": "BYTES", "shape": [MAX_TEXTS, 3], "data": ["a"]}
    with pytest.raises(RequestError, match=f"at most {MAX_TEXTS} elements of BYTES"):
        array(json.dumps({"inputs": [entry]}).encode(), MODELS["BYTES"])


def test_a_duplicate_among_many_fields_is_found_in_linear_time() -> None:
    """A quadratic check took 80 seconds."""
    names = ",".join(f'"{number:x}":0' for number in range(50_000))
    begin = time.perf_counter()
    with pytest.raises(RequestError, match="has a duplicate field 'c34f'"):
        json_text.read_object(f'{{{names},"c34f":0}}'.encode())
    assert time.perf_counter() - begin < 5


def test_nested_lists_that_do_not_end_are_read_in_linear_time() -> None:
    text = b'{"inputs":[{' + b'"data":["a"' * 20_000 + b"{"
    begin = time.perf_counter()
    with pytest.raises(RequestError, match="the JSON of the request"):
        array(text, MODELS["BYTES"])
    assert time.perf_counter() - begin < 5


def test_an_ignored_list_of_data_is_accepted() -> None:
    text = (
        b'{"x":{"data":[[1],[]]},"inputs":[{"name":"x","datatype":"FP64","shape":[0,3],"data":[]}]}'
    )
    assert array(text, MODELS["FP64"]).shape == (0, 3)


@pytest.mark.parametrize(
    "fields", ['"data":[1],"data":[1]', '"data":[1],"d\\u0061ta":[1]', '"data":1,"data":[1]']
)
def test_duplicate_data_is_refused(fields: str) -> None:
    text = f'{{"inputs":[{{"name":"x","datatype":"FP64","shape":[1],{fields}}}]}}'
    with pytest.raises(RequestError, match="has a duplicate field 'data'"):
        array(text.encode(), echo("m", tensor("x", "f8", -1)))


def test_an_escaped_name_is_a_name() -> None:
    text = b'{"inputs":[{"name":"x","datatype":"FP64","shape":[2],"d\\u0061ta":[1,NaN]}]}'
    np.testing.assert_array_equal(array(text, echo("m", tensor("x", "f8", -1))), [1, np.nan])


@pytest.mark.parametrize("number", ["0", "7", '"a"', "null"])
def test_clients_cannot_use_the_field_that_replaces_a_list(number: str) -> None:
    text = f'{{"inputs":[{{"name":"x","datatype":"FP64","shape":[1],"data\\u0000":{number}}}]}}'
    with pytest.raises(RequestError, match="input 'x': data: expected a list"):
        array(text.encode(), echo("m", tensor("x", "f8", -1)))


def test_errors_name_the_position_in_the_request() -> None:
    """Even if lists were cut out before it."""
    text = b'{"inputs":[{"data":[1,2,3,4,5,6,7]}], "more" 5}'
    with pytest.raises(RequestError, match=f"at byte {text.index(b'5}')}"):
        json_text.read_object(text)
    with pytest.raises(RequestError, match="byte 45 is not UTF-8"):
        json_text.read_object(b'{"inputs":[{"data":[1,2,3,4,5,6,7]}], "more":\xff}')
