"""Tables of bad requests, with the words that each refusal must contain."""

import copy
import gzip
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

LIMIT = 1 << 20
_DEEP = 100_000  # nested lists and objects: deeper than any Python reads
HEADER = "Inference-Header-Content-Length"
INFER = "/v2/models/m/infer"
TENSORS = {
    "x": ("f4", "FP32", [2, 3], 24),
    "h": ("f2", "FP16", [2], 4),
    "n": ("i1", "INT8", [2], 2),
    "u": ("u8", "UINT64", [2], 16),
    "b": ("?", "BOOL", [2], 2),
    "t": ("O", "BYTES", [2], 10),
}
DATA: dict[str, list[Any]] = {
    "x": [1.5, 2, 3, 4, 5, 6],
    "h": [1, 2],
    "n": [-128, 127],
    "u": [0, 2**64 - 1],
    "b": [True, False],
    "t": ["a", "b"],
}
RAW_TEXT = struct.pack("<I1sI1s", 1, b"a", 1, b"b")


class Bad(NamedTuple):
    """A request, and the words that its refusal must contain."""

    name: str
    words: str
    body: bytes | Sequence[bytes] = b""
    headers: Mapping[str, str] = {}
    status: int = 400
    path: str = INFER
    method: str = "POST"


def good() -> dict[str, Any]:
    """Every input in JSON."""
    return {
        "id": "1",
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape, "data": DATA[name]}
            for name, (_, datatype, shape, _) in TENSORS.items()
        ],
    }


def changed(of: str, **fields: Any) -> bytes:
    """The good request with changed fields of one input; None removes a field."""
    request = copy.deepcopy(good())
    (entry,) = (e for e in request["inputs"] if e["name"] == of)
    for key, value in fields.items():
        entry[key] = value
        if value is None:
            del entry[key]
    return json.dumps(request).encode()


def with_fields(**fields: Any) -> bytes:
    return json.dumps(good() | fields).encode()


def as_text(old: str, new: str) -> bytes:
    """The good request with a change of its text that no Python object could express."""
    text = json.dumps(good())
    assert text.count(old) == 1, old
    return text.replace(old, new).encode()


def binary(
    sizes: Mapping[str, Any], data: bytes, length: int | str | None = None
) -> tuple[bytes, dict[str, str]]:
    """A body with some inputs as binary data, and the header with the length of its JSON."""
    request = copy.deepcopy(good())
    for entry in request["inputs"]:
        if entry["name"] in sizes:
            del entry["data"]
            entry["parameters"] = {"binary_data_size": sizes[entry["name"]]}
    text = json.dumps(request).encode()
    return text + data, {HEADER: str(len(text) if length is None else length)}


def shapes() -> Iterator[Bad]:
    wrong: dict[str, list[Any]] = {
        "negative": [-1, 3],
        "negative-product": [-2, -3],
        "zero": [2, 0],
        "more-dimensions": [1, 2, 3],
        "fewer-dimensions": [6],
        "none": [],
        "another-size": [2, 4],
        "another-batch": [3, 3],
        "transposed": [3, 2],
        "enormous": [2**31, 3],
        "enormous-product": [2**31 - 1, 3],
        "beyond-int64": [2**70, 3],
        "floats": [2.0, 3],
        "strings": ["2", "3"],
        "booleans": [True, 3],
        "null": [None, 3],
        "nested": [[2, 3]],
        "many": [1] * 2000,
    }
    for what, shape in wrong.items():
        yield Bad(f"shape-{what}", "input 'x': shape", changed("x", shape=shape))
    for what, value in {"number": 6, "text": "2,3", "object": {"0": 2}, "true": True}.items():
        yield Bad(f"shape-{what}", "input 'x': shape", changed("x", shape=value))
    yield Bad("no-shape", "input 'x': the field 'shape'", changed("x", shape=None))
    for name in TENSORS:
        shape = [5, 3] if name == "x" else [5]
        yield Bad(f"shape-of-{name}", f"input '{name}': shape", changed(name, shape=shape))


def datatypes() -> Iterator[Bad]:
    for name, (_, datatype, _, _) in TENSORS.items():
        for other in ("FP32", "FP64", "INT8", "UINT8", "BOOL", "BYTES", "BF16"):
            if other != datatype:
                body = changed(name, datatype=other)
                yield Bad(f"{name}-as-{other}", f"input '{name}': datatype", body)
    for value in ("float32", "fp32", "", "STRING", 1, True, ["FP32"], {"a": 1}):
        yield Bad(f"datatype-{value}", "input 'x': datatype", changed("x", datatype=value))
    yield Bad("no-datatype", "input 'x': the field 'datatype'", changed("x", datatype=None))


def names() -> Iterator[Bad]:
    entries = good()["inputs"]
    for at, entry in enumerate(entries):
        name = entry["name"]
        rest = entries[:at] + entries[at + 1 :]
        yield Bad(f"without-{name}", f"input '{name}'", with_fields(inputs=rest))
        yield Bad(f"twice-{name}", f"input '{name}'", with_fields(inputs=[*entries, entry]))
    for value in ("X", "", "x ", "y" * 10_000, "\ud800", "\0", "<script>"):
        yield Bad(f"name-{value[:9]!a}", "the model has no such input", changed("x", name=value))
    for value in (1, True, ["x"], {"x": 1}):
        yield Bad(f"name-{value}", "input's name: expected a string", changed("x", name=value))
    yield Bad("no-name", "the field 'name' is missing", changed("x", name=None))
    for value in (None, {}, "x", 5, [5], [None], [[]]):
        yield Bad(f"inputs-{value}", "inputs: expected a list", with_fields(inputs=value))
    yield Bad("inputs-empty", "input 'x'", with_fields(inputs=[]))
    yield Bad("no-inputs", "inputs: missing", b'{"outputs":[]}')
    yield Bad("empty-object", "inputs: missing", b"{}")


def elements() -> Iterator[Bad]:
    wrong: dict[str, list[list[Any]]] = {
        "x": [["1"] * 6, [True] * 6, [None] * 6, [{}] * 6, [1e39, *range(5)], [10**400] + [0] * 5],
        "h": [[70000, 1], ["a", 1], [None, 1]],
        "n": [[128, 0], [-129, 0], [1.0, 0], [1.5, 0], [True, 0], ["1", 0], [10**40, 0], [None, 0]],
        "u": [[-1, 0], [2**64, 0], [0.5, 0], [False, 0]],
        "b": [[1, 0], ["true", "false"], [None, True], [1.0, True]],
        "t": [[1, 2], [None, "a"], [True, "a"], [["a"], ["b"]], ["\udc00", "a"]],
    }
    for name, lists in wrong.items():
        for at, data in enumerate(lists):
            yield Bad(f"element-{name}-{at}", f"input '{name}': data", changed(name, data=data))
    for value in ("[1]", 5, {"0": 1}, True):
        yield Bad(f"data-{value}", "input 'x': data: expected a list", changed("x", data=value))
    nested: dict[str, list[Any]] = {
        "transposed": [[1, 2], [3, 4], [5, 6]],
        "ragged": [[1, 2, 3], [4, 5]],
        "half": [[1, 2, 3], 4],
        "half-first": [1, [2, 3], 4, 5, 6, 7],
        "deeper": [[[1], [2], [3]], [[4], [5], [6]]],
        "around": [[[1, 2, 3], [4, 5, 6]]],
        "empty-rows": [[], []],
    }
    for what, data in nested.items():
        yield Bad(f"nested-{what}", "input 'x'", changed("x", data=data))
    for count in (0, 1, 5, 7, 1000):
        body = changed("x", data=[0] * count)
        yield Bad(f"{count}-elements", f"has 6 elements, data has {count}", body)
    for name in ("n", "b", "u", "t"):
        for constant in ("NaN", "Infinity"):
            old = json.dumps(DATA[name])
            body = as_text(f'"data": {old}', f'"data": [{constant}, {constant}]')
            yield Bad(f"{constant}-{name}", f"input '{name}': data", body)
    yield Bad("1e999", "input 'x': data: element 0", as_text("[1.5, 2", "[1e999, 2"))
    yield Bad("no-data", "input 'x': expected 'data'", changed("x", data=None))


def json_texts() -> Iterator[Bad]:
    texts: dict[str, bytes] = {
        "empty": b"",
        "space": b"  ",
        "no-json": b"hello",
        "cut": json.dumps(good()).encode()[:-1],
        "cut-early": json.dumps(good()).encode()[:40],
        "more": json.dumps(good()).encode() + b"{}",
        "list": b"[]",
        "string": b'"a"',
        "null": b"null",
        "number": b"1",
        "constant": b"NaN",
        "single-quotes": str(good()).encode(),
        "comma": b'{"inputs":[],}',
        "control": b'{"inputs":"\x01"}',
        "not-utf8": b'{"inputs":"\xff"}',
        "latin": '{"inputs":"ü"}'.encode("latin-1"),
        "utf16": json.dumps(good()).encode("utf-16"),
        "bom": b"\xef\xbb\xbf{}",
        "nested": b"[" * _DEEP + b"]" * _DEEP,
        "nested-objects": b'{"a":' * _DEEP + b"1" + b"}" * _DEEP,
        "nested-cut": b"[" * _DEEP,
        "digits": b'{"inputs":' + b"9" * 10_000 + b"}",
        "field-twice": b'{"inputs":[],"inputs":[]}',
        "form": b"inputs=1&outputs=2",
        "xml": b"<inputs/>",
        "zero-bytes": bytes(100),
    }
    for what, body in texts.items():
        yield Bad(f"json-{what}", "the JSON of the request", body)
    deep = json.dumps(good()).replace("1.5", "[" * 900 + "]" * 900).encode()
    yield Bad("json-nested-data", "input 'x'", deep)
    for value in (1, True, ["a"], {"a": 1}):
        yield Bad(f"id-{value}", "id: expected a string", with_fields(id=value))


def parameters() -> Iterator[Bad]:
    for value in ([], "a", 5, True):
        yield Bad(f"parameters-{value}", "parameters", with_fields(parameters=value))
    wrong: dict[str, list[Any]] = {
        "sequence_id": [1.5, -1, None, [], True],
        "sequence_start": [1, "true", None],
        "sequence_end": [0, {}],
        "timeout": [-1, 0.5, "10", True, None],
        "priority": [-1, "high"],
        "binary_data_output": [1, "yes", None],
        "mine": [None, [], {"a": 1}],
    }
    for name, found in wrong.items():
        for value in found:
            body = with_fields(parameters={name: value})
            yield Bad(f"parameter-{name}-{value}", f"parameters: '{name}'", body)
    for value in ([], 5, "a"):
        yield Bad(f"x-parameters-{value}", "input 'x': parameters", changed("x", parameters=value))
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 24}
    yield Bad("shared", "input 'x': shared memory", changed("x", parameters=shared, data=None))


def outputs() -> Iterator[Bad]:
    for value in (5, "x", {"name": "x"}, [5], [None], ["x"]):
        yield Bad(f"outputs-{value}", "outputs: expected a list", with_fields(outputs=value))
    wrong: dict[str, tuple[str, Any]] = {
        "unknown": ("output 'y'", [{"name": "y"}]),
        "unknown-second": ("output 'y'", [{"name": "x"}, {"name": "y"}]),
        "twice": ("output 'x'", [{"name": "x"}, {"name": "x"}]),
        "no-name": ("outputs: an output's name", [{}]),
        "name-number": ("outputs: an output's name", [{"name": 1}]),
        "parameters": ("output 'x': parameters", [{"name": "x", "parameters": []}]),
        "binary": ("output 'x': binary_data", [{"name": "x", "parameters": {"binary_data": 1}}]),
        "classification": (
            "classification extension is not supported",
            [{"name": "x", "parameters": {"classification": 3}}],
        ),
        "shared": (
            "output 'x': shared memory",
            [{"name": "x", "parameters": {"shared_memory_region": "r"}}],
        ),
    }
    for what, (words, value) in wrong.items():
        yield Bad(f"output-{what}", words, with_fields(outputs=value))


def binary_bodies() -> Iterator[Bad]:
    for name, (_, _, _, size) in TENSORS.items():
        data = RAW_TEXT if name == "t" else bytes(size)
        for given in (0, size - 1, size + 1):
            body, headers = binary({name: given}, (data + b"\0")[:given])
            yield Bad(f"binary-{name}-{given}-bytes", f"input '{name}'", body, headers)
        body, headers = binary({name: size}, data[:-1])
        yield Bad(f"binary-{name}-cut", f"input '{name}': binary_data_size", body, headers)
        body, headers = binary({name: size}, data + b"\0")
        yield Bad(f"binary-{name}-more", "the body has 1 bytes after", body, headers)
    for value in (-1, 24.0, "24", True, None, [24], 2**63, 10**30):
        body, headers = binary({"x": value}, bytes(24))
        yield Bad(f"binary-size-{value}", "input 'x': binary_data_size", body, headers)
    body, _ = binary({"x": 24}, b"")
    yield Bad("binary-without-header", "Inference-Header-Content-Length", body)
    both = changed("x", parameters={"binary_data_size": 24})
    yield Bad("data-twice", "input 'x': has 'data'", both, {HEADER: str(len(both))})
    body, headers = binary({"b": 2}, b"\x02\x00")
    yield Bad("binary-bool", "input 'b': bytes of BOOL", body, headers)
    texts = {
        "beyond": struct.pack("<I1sI1s", 1, b"a", 2, b"b"),
        "huge": struct.pack("<I6s", 2**32 - 1, b"abcdef"),
        "one": struct.pack("<I6s", 6, b"abcdef"),
        "three": struct.pack("<I1sII", 1, b"a", 0, 0),
        "rest": struct.pack("<I3s3s", 3, b"abc", b"abc"),
    }
    for what, data in texts.items():
        body, headers = binary({"t": len(data)}, data)
        yield Bad(f"binary-text-{what}", "input 't'", body, headers)
    many, headers = binary({"x": 24, "n": 2}, bytes(25))
    yield Bad("binary-second-cut", "input 'n': binary_data_size", many, headers)


def headers() -> Iterator[Bad]:
    body, _ = binary({"x": 24}, bytes(24))
    for value in ("-1", "1.0", "abc", "", "0x10", "1e3", " ", "+5", "٣", "9" * 30, "1,2"):
        given = {HEADER: value.encode().decode("latin-1")}
        yield Bad(f"length-{value!a}", HEADER, body, given)
    for value in (len(body) + 1, 10**9, 2**63):
        yield Bad(f"length-{value}", f"{HEADER} is {value}", body, {HEADER: str(value)})
    for value in (0, 1, len(body) - 25, len(body) - 23):
        yield Bad(f"length-{value}", "the JSON of the request", body, {HEADER: str(value)})
    for value in ("br", "zstd", "gzip, gzip", "gzip2", "", "\xff"):
        given = {"Content-Encoding": value}
        yield Bad(f"encoding-{value!a}", "Content-Encoding", body, given, 415)


def compressed() -> Iterator[Bad]:
    body = json.dumps(good()).encode()
    made = {"gzip": gzip.compress(body), "deflate": zlib.compress(body)}
    for name, data in made.items():
        given = {"Content-Encoding": name}
        yield Bad(f"{name}-plain", "Content-Encoding: the body is not", body, given)
        yield Bad(f"{name}-empty", "Content-Encoding", b"", given)
        yield Bad(f"{name}-cut", "is truncated", data[:-1], given)
        yield Bad(f"{name}-half", "is truncated", data[: len(data) // 2], given)
        yield Bad(f"{name}-more", "bytes follow", data + b"\0", given)
        yield Bad(f"{name}-twice", "bytes follow", data + data, given)
        damaged = data[:-6] + bytes([data[-6] ^ 255]) + data[-5:]
        yield Bad(f"{name}-damaged", "Content-Encoding", damaged, given)
        bomb = gzip.compress(bytes(9 << 20)) if name == "gzip" else zlib.compress(bytes(9 << 20))
        yield Bad(f"{name}-bomb", f"expected at most {LIMIT} bytes", bomb, given, 413)
        other = {"Content-Encoding": "deflate" if name == "gzip" else "gzip"}
        yield Bad(f"{name}-as-other", "Content-Encoding", data, other)
    raw = zlib.compressobj(wbits=-15)
    stream = raw.compress(body) + raw.flush()
    yield Bad("raw-deflate", "Content-Encoding", stream, {"Content-Encoding": "deflate"})


def sizes() -> Iterator[Bad]:
    words = f"expected at most {LIMIT} bytes (max_request_bytes)"
    yield Bad("one-more", words, bytes(LIMIT + 1), {}, 413)
    yield Bad("in-pieces", words, [bytes(9000)] * 200, {}, 413)
    yield Bad("declared", words, b"{}", {"Content-Length": str(LIMIT + 1)}, 413)
    yield Bad("declared-huge", words, b"{}", {"Content-Length": "9" * 40}, 413)
    yield Bad("index", words, bytes(LIMIT + 1), status=413, path="/v2/repository/index")


def paths() -> Iterator[Bad]:
    body = json.dumps(good()).encode()
    for path in ("/v2/models/other/infer", "/v2/models/M/infer", "/v2/models/" + "m" * 5000):
        method = "POST" if path.endswith("infer") else "GET"
        name = f"model-{path[:25]}"
        yield Bad(name, "is not served", body, status=404, path=path, method=method)
    for version in ("2", "0", "01", "1 ", "latest"):
        for rest, method in (("", "GET"), ("/ready", "GET"), ("/infer", "POST")):
            path = f"/v2/models/m/versions/{version}{rest}"
            name = f"version-{version}{rest}"
            yield Bad(name, "has the version '1'", body, status=404, path=path, method=method)
    for path in (
        *("/", "/v1/models/m:predict", "/v2/", "/v2/models", "/v2/models/", "/v2/models//infer"),
        *("/v2/models/m/infer/", "/v2/models/m/predict", "/v2/health", "/V2", "/favicon.ico"),
        *("/v2/models/m/../m/infer", "/v2/models/a/b/infer", "/v2/models/m/versions"),
        *("/v2/models/m/versions//infer", "/metrics/x", "//v2", "/v2/models/m/infer?x=1"),
    ):
        yield Bad(f"path-{path}", "unknown path", body, status=404, path=path)
    for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "FOO"):
        words = f"does not support {method}"
        yield Bad(f"{method}-infer", words, b"", status=405, path=INFER, method=method)
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m", "/metrics"):
        yield Bad(f"POST-{path}", "does not support POST", body, status=405, path=path)
    index = "/v2/repository/index"
    yield Bad("GET-index", "does not support GET", b"", status=405, path=index, method="GET")
    for at, index_body in enumerate((b"[]", b"x", b'{"ready":1}')):
        words = ("the JSON of the request", "the JSON of the request", "ready")[at]
        yield Bad(f"index-{at}", words, index_body, path=index)


TABLES = (
    *(shapes, datatypes, names, elements, json_texts, parameters, outputs),
    *(binary_bodies, headers, compressed, sizes, paths),
)
BAD = [bad for table in TABLES for bad in table()]
