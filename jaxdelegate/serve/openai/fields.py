"""What values the fields of OpenAI's API may have, and errors that name a field."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxdelegate.serve.clients import RequestError, shown

_INT64 = 1 << 63


class ApiError(RequestError):
    """A request is refused."""

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message if param is None else f"{param}: {message}", status)
        # The wrong field, such as messages[0].content; a word for programs: model_not_found.
        self.param, self.code = param, code


class Kind(NamedTuple):
    expected: str
    has: Callable[[Any], Any]  # whether it has a value
    read: Callable[[Any], Any] = lambda value: value  # the value that the server computes with

    def checked(self, value: Any, where: str) -> Any:
        """The value, read; an ApiError if the kind does not have it."""
        if not self.has(value):
            raise ApiError(f"expected {self.expected}, got {shown(value)}", param=where)
        return self.read(value)


def is_integer(value: object) -> bool:
    """Whether it is an integer of JSON; clients in some languages write 16 as 16.0."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and value.is_integer()
    )


def is_number(value: object) -> bool:
    return isinstance(value, float) or is_integer(value)


def integers(least: int, most: int = _INT64 - 1) -> Kind:
    expected = f"an integer from {least} to {most}"
    return Kind(expected, lambda value: is_integer(value) and least <= value <= most, int)


def numbers(least: float, most: float) -> Kind:
    expected = f"a number from {least:g} to {most:g}"
    return Kind(expected, lambda v: is_number(v) and least <= v <= most, float)  # not NaN


def texts(most: int, most_characters: int) -> Kind:
    """A text or a list of texts, read as a tuple without empty ones."""

    def are_texts(value: Any) -> bool:
        listed = [value] if isinstance(value, str) else value
        return (
            isinstance(listed, list)
            and len(listed) <= most
            and all(isinstance(text, str) and len(text) <= most_characters for text in listed)
        )

    def read(value: Any) -> tuple[str, ...]:
        return tuple(filter(None, [value] if isinstance(value, str) else value))

    expected = f"a string, or a list of at most {most} strings"
    return Kind(f"{expected}, of at most {most_characters} characters each", are_texts, read)


STRING = Kind("a string", lambda value: isinstance(value, str))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
ANY = Kind("", lambda _: True)  # it is checked elsewhere
IDS = Kind(
    "token ids",
    lambda v: isinstance(v, list) and all(is_integer(i) and 0 <= i < 1 << 31 for i in v),
    lambda v: [*map(int, v)],
)


def one_of(*words: str) -> Kind:
    return Kind(f"one of {', '.join(words)}", lambda v: isinstance(v, str) and v in words)


def biases(value: Any) -> Mapping[int, float] | None:
    """`logit_bias`: numbers to add to logits by token; None: it is none."""
    if not isinstance(value, dict):
        return None
    read = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            return None
        if not (is_number(bias) and -100 <= bias <= 100):
            return None
        read[int(token)] = float(bias)
    return read


BIASES = Kind(
    "an object of numbers from -100 to 100 by token id", lambda v: biases(v) is not None, biases
)
