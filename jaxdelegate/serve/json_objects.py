"""Reads JSON objects of requests; duplicate fields are refused."""

import collections
import json
from collections.abc import Callable
from typing import Any

from jaxdelegate.serve.clients import RequestError, shown

Buffer = bytes | bytearray


class Constant(float):
    """NaN, Infinity or -Infinity in JSON, as opposed to a number too large for a double."""


def parsed_object(text: Buffer, position_of: Callable[[int], int] = int) -> dict[str, Any]:
    """The JSON object in UTF-8 of a whole text. A RequestError if it is invalid, or not an object.

    `position_of` maps a position in the text to one in the body, for messages.
    """
    try:
        value = read(text)
    except RecursionError:
        raise RequestError("the JSON of the request is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the JSON of the request: byte {position_of(error.start)} is not UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        at = position_of(len(error.doc[: error.pos].encode()))
        raise RequestError(f"the JSON of the request: {error.msg} at byte {at}") from None
    except RequestError:
        raise
    except ValueError:  # Python limits the digits of integers
        raise RequestError("the JSON of the request has an integer of too many digits") from None
    if not isinstance(value, dict):
        raise RequestError(f"the JSON of the request: expected an object, got {shown(value)}")
    return value


def read(text: Buffer | memoryview) -> Any:
    """A value with constants as `Constant`. A ValueError of `json`, or a RequestError."""
    return json.loads(str(text, "utf-8"), parse_constant=Constant, object_pairs_hook=_fields)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        raise duplicate_field(next(name for name, count in counts.items() if count > 1))
    return fields


def duplicate_field(name: str) -> RequestError:
    name = name.removesuffix("\0")  # marks a list that was cut out of the text
    return RequestError(f"the JSON of the request has a duplicate field {shown(name)}")
