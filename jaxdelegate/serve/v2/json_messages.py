"""Decodes requests of JSON and binary data, and encodes responses; independent of HTTP."""

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxdelegate.serve.clients import NO_CLIENT, Client, RequestError, shown
from jaxdelegate.serve.json_objects import Buffer, duplicate_field
from jaxdelegate.serve.v2 import protocol
from jaxdelegate.serve.v2.json_text import LIST, ListText, read_object
from jaxdelegate.serve.v2.model import ServedModel
from jaxdelegate.serve.v2.protocol import InputFields, RequestFields
from jaxdelegate.serve.v2.requests import InferRequest
from jaxdelegate.serve.v2.tensors import Declared, elements, from_binary, from_json, name_of

_PART = 1 << 13  # elements written at once; other threads can run between two parts


def decode(
    body: Buffer, header_length: int | None, model: ServedModel, client: Client = NO_CLIENT
) -> InferRequest:
    """Read a request: JSON, then the binary data of inputs, in the order of the JSON.

    `header_length` is the bytes of JSON; None: the whole body. Arrays are read-only; those of
    binary data are views of `body`. Errors as `protocol.checked`.
    """
    if header_length is not None and header_length > len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {shown(header_length)}, but the body has "
            f"{len(body)} bytes"
        )
    end = len(body) if header_length is None else header_length
    has_texts = any(t.dtype.kind == "O" for t in model.inputs)
    fields, lists = read_object(body, end, has_texts=has_texts)
    rest = memoryview(body).toreadonly()[end:]
    data = _Data(lists, rest, has_header=header_length is not None)
    parameters, identity = fields.get("parameters"), fields.get("id", "")
    entries = RequestFields(identity, parameters, _inputs(fields, data), _outputs(fields))
    request = protocol.checked(entries, model, client)
    if left := len(data.binary):
        raise RequestError(f"the body has {left} bytes after the binary data of its inputs")
    return request


def _inputs(fields: Mapping[str, Any], data: "_Data") -> Iterator[InputFields]:
    if "inputs" not in fields:
        raise RequestError("inputs: missing; expected a list of objects")
    for at, entry in enumerate(_list(fields, "inputs")):
        for name in ("name", "datatype", "shape"):
            if name not in entry:
                where = f"input {shown(entry.get('name', at))}"
                raise RequestError(f"{where}: the field {name!r} is missing")
        read = functools.partial(data.array, entry)
        yield InputFields(
            entry["name"], entry["datatype"], entry["shape"], entry.get("parameters"), read
        )


def _outputs(fields: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
    """An empty list requests all outputs, as in Triton."""
    for entry in _list(fields, "outputs") if "outputs" in fields else ():
        yield entry.get("name"), entry.get("parameters")


def _list(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    entries = fields[name]
    if not isinstance(entries, list):
        raise RequestError(f"{name}: expected a list of objects, got {shown(entries)}")
    for entry in entries:
        if not isinstance(entry, dict):
            raise RequestError(f"{name}: expected a list of objects, one is {shown(entry)}")
    return entries


class _Data:
    """The lists that were cut out of the JSON, and the bytes after it, read from the front."""

    def __init__(self, lists: list[ListText], binary: memoryview, *, has_header: bool) -> None:
        self._lists, self.binary, self._has_header = lists, binary, has_header

    def array(
        self, entry: Mapping[str, Any], tensor: Declared, parameters: Mapping[str, Any]
    ) -> np.ndarray:
        has_list = "data" in entry or LIST in entry
        if "binary_data_size" not in parameters:
            if not has_list:
                raise RequestError(f"{tensor}: expected 'data' or the parameter 'binary_data_size'")
            return from_json(tensor, self._listed(entry))
        if has_list:
            raise RequestError(f"{tensor}: has 'data' and 'binary_data_size'; send only one")
        size, left = parameters["binary_data_size"], len(self.binary)
        if type(size) is not int or size < 0:
            raise RequestError(f"{tensor}: binary_data_size: expected bytes, got {shown(size)}")
        if not self._has_header:
            raise RequestError(
                f"{tensor}: binary_data_size needs the header Inference-Header-Content-Length: the "
                "bytes of JSON before the data"
            )
        if size > left:
            raise RequestError(
                f"{tensor}: binary_data_size is {shown(size)}, but only {left} bytes of the body "
                "are left"
            )
        data, self.binary = self.binary[:size], self.binary[size:]
        return from_binary(tensor, data)

    def _listed(self, entry: Mapping[str, Any]) -> object:
        if LIST not in entry:
            return entry.get("data")
        if "data" in entry:
            raise duplicate_field("data")
        number = entry[LIST]
        is_own = type(number) is int and 0 <= number < len(self._lists)
        return self._lists[number] if is_own else number  # a client has sent this field


def encode(
    request: InferRequest, model: ServedModel, results: Mapping[str, np.ndarray]
) -> tuple[list[bytes | memoryview], int | None]:
    """The body in pieces, and the bytes of JSON; None: all, since no output is binary."""
    chunks: list[bytes | memoryview] = []
    response = {"model_name": model.name, "model_version": model.version}
    if request.id:
        response["id"] = request.id
    texts = [f'{_without_brace(response)},"outputs":['.encode()]
    for number, (name, is_binary) in enumerate(request.outputs.items()):
        array = results[name]
        entry: dict[str, object] = {
            "name": name,
            "datatype": name_of(array.dtype),
            "shape": array.shape,
        }
        if is_binary:
            chunks.append(protocol.binary(array))
            entry["parameters"] = {"binary_data_size": len(chunks[-1])}
        texts.append(f"{',' if number else ''}{_without_brace(entry)}".encode())
        texts += [b"}"] if is_binary else [b',"data":[', *_listed(array), b"]}"]
    texts.append(b"]}")
    return [*texts, *chunks], sum(map(len, texts)) if chunks else None


def _without_brace(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"))[:-1]


def _listed(array: np.ndarray) -> Iterator[bytes]:
    """The elements as JSON, separated by commas; NaN and infinity as `NaN` and `Infinity`."""
    flat = array.ravel()
    is_text = name_of(array.dtype) == "BYTES"
    for at in range(0, flat.size, _PART):
        part = flat[at : at + _PART]
        try:
            values = [e.decode() for e in elements(part)] if is_text else part.tolist()
        except UnicodeDecodeError:
            raise RequestError(
                "an output's bytes are not UTF-8: request binary data (binary_data=True)"
            ) from None
        yield (b"," if at else b"") + json.dumps(values, separators=(",", ":"))[1:-1].encode()
