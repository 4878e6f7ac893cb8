"""Reads the JSON of requests in memory proportional to its text.

Python's `json` creates objects many times as large as the text, and does not let other threads run
meanwhile. So the lists `data` of tensors are cut out of the text first; the rest must be short. The
lists are read in parts, after the request's shape was checked against the model.
"""

import bisect
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.json_objects import Buffer, parsed_object, read

MAX_OUTLINE = 1 << 20  # bytes of a request's JSON besides the lists of tensors' data
MAX_TEXTS = 1 << 20  # elements of BYTES in a tensor: each takes some 60 bytes more than its text
MAX_TEXT_BYTES = 1 << 24  # limits lists with strings; Python may use four bytes per character
LIST = "data\0"  # the field that replaces a list `data`: its index among the lists
_STEP = 1 << 16  # bytes searched or read at once; other threads can run between two steps

# A key: in valid JSON the quote before it cannot be the end of a string.
_DATA = re.compile(rb'[{,\s]"data"\s*:\s*(?=\[)')
_OUTSIDE = re.compile(rb'[^"{}]++')
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)++', re.DOTALL)
_MISPLACED = re.compile(rb"[^\s,\[]\s*\[|\]\s*[^\s,\]]")  # a bracket next to a number
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[],"))


@dataclasses.dataclass(frozen=True, slots=True)
class ListText:
    """A JSON list that is not read yet."""

    body: Buffer
    start: int  # position of the opening bracket
    end: int  # position after the closing bracket
    commas: int  # outside strings
    has_strings: bool

    @property
    def is_nested(self) -> bool:
        inner = re.compile(rb"\s*\[").match(self.body, self.start + 1, self.end)
        return inner is not None

    @property
    def length(self) -> int:
        blank = re.compile(rb"\s*+\]").match(self.body, self.start + 1, self.end)
        return 0 if blank is not None else self.commas + 1

    def read(self) -> list[Any]:
        values: list[Any] = read(memoryview(self.body)[self.start : self.end])
        return values

    def flat(self) -> Iterator[list[Any]]:
        """The elements of a flat list without strings, in parts."""
        for at, stop in self._parts(self.start + 1, self.end - 1):
            yield read(b"[" + self.body[at:stop] + b"]")

    def nested(self, shape: tuple[int, ...]) -> Iterator[list[Any]]:
        """The elements of lists without strings that are nested like a shape, in parts.

        A NestingError if they are nested differently, a ValueError if they are not valid JSON.
        """
        if not shape or _skeleton_size(shape) > self.end - self.start:
            raise NestingError
        skeleton = _skeleton(shape)
        seen = 0
        for at, stop in self._parts(self.start, self.end):
            part = self.body[at : min(stop + 1, self.end)]  # with its comma
            brackets = part.translate(None, _NO_STRUCTURE)
            if skeleton[seen : seen + len(brackets)] != brackets or _MISPLACED.search(part):
                raise NestingError
            seen += len(brackets)
            numbers = self.body[at:stop].translate(None, b"[]")
            if 0 in shape:  # only commas between lists
                if numbers.translate(None, b", \t\r\n"):
                    raise NestingError
            else:
                yield read(b"[" + numbers + b"]")
        if seen != len(skeleton):
            raise NestingError

    def _parts(self, at: int, end: int) -> Iterator[tuple[int, int]]:
        """Positions of pieces of the text, split at commas."""
        while at < end:
            stop = end
            if end - at > _STEP:
                stop = self.body.rfind(b",", at, at + _STEP)
                if stop < 0:
                    raise ValueError(f"an element of more than {_STEP} characters")
            yield at, stop
            at = stop + 1


class NestingError(ValueError):
    """Lists are not nested like a shape."""


def _skeleton(shape: tuple[int, ...]) -> bytes:
    """The brackets and commas of lists nested like a shape."""
    text = b"," * (shape[-1] - 1)
    for size in reversed(shape[:-1]):
        row = b"[" + text + b"]"
        text = b"".join([(row + b",") * (size - 1), row]) if size else b""
    return b"[" + text + b"]"


def _skeleton_size(shape: tuple[int, ...]) -> int:
    size = max(shape[-1] - 1, 0)
    for count in reversed(shape[:-1]):
        size = (size + 3) * count - 1 if count else 0
    return size + 2


def read_object(
    body: Buffer, end: int | None = None, *, has_texts: bool = False
) -> tuple[dict[str, Any], list[ListText]]:
    """Read the JSON object in UTF-8 at the start of a body, and the lists that were cut out.

    The field `LIST`, an index into the lists, replaces a field `data` with a list that contains no
    objects. Lists of strings are cut out only with `has_texts`; otherwise they are read with the
    object, like all lists of a small request. A RequestError if the JSON is invalid, not an object,
    has a duplicate field, or more than `MAX_OUTLINE` bytes without the lists.
    """
    end = len(body) if end is None else end
    outline = None if end <= _STEP else _Outline(body, end, has_texts=has_texts)
    text: Buffer = body[:end]
    lists: list[ListText] = []
    position_of: Callable[[int], int] = int
    if outline is not None:
        text, lists, position_of = outline.text, outline.lists, outline.position_in_body
    return parsed_object(text, position_of), lists


class _Outline:
    """The JSON without its lists of data, with the original positions of its parts."""

    def __init__(self, body: Buffer, end: int, *, has_texts: bool) -> None:
        self.text = bytearray()
        self.lists: list[ListText] = []
        self._starts: list[tuple[int, int]] = []  # where each part is in the text and in the body
        at = 0
        while True:
            match = _DATA.search(body, at, min(end, at + MAX_OUTLINE + 1))
            self._add(body, at, end if match is None else match.start() + 1)
            if match is None:
                return
            listed = _list_at(body, match.end(), end, has_texts)
            if isinstance(listed, int):  # no other list starts before this position
                at = listed
                self._add(body, match.start() + 1, at)
            else:
                self.text += b'"data\\u0000":%d' % len(self.lists)
                self.lists.append(listed)
                at = listed.end

    def _add(self, body: Buffer, start: int, end: int) -> None:
        if len(self.text) + end - start > MAX_OUTLINE:
            raise RequestError(
                f"the JSON of the request: expected at most {MAX_OUTLINE} bytes without the lists "
                "'data' of its inputs, got more"
            )
        self._starts.append((len(self.text), start))
        self.text += body[start:end]

    def position_in_body(self, position: int) -> int:
        at = bisect.bisect(self._starts, (position, len(self.text))) - 1
        in_text, in_body = self._starts[at]
        return in_body + position - in_text


def _list_at(body: Buffer, start: int, end: int, has_texts: bool) -> ListText | int:
    """The list at a position, or the position of an object or unexpected string inside it."""
    at, depth, commas, lists, has_strings = start, 0, 0, 0, False
    while True:
        stop = _after(_OUTSIDE, body, at, end)
        if stop == at + 1 and body[at] == ord(","):  # the usual text between two strings
            commas += 1
        else:
            opened = _count(b"[", body, at, stop)
            depth += opened - _count(b"]", body, at, stop)
            lists, commas = lists + opened, commas + _count(b",", body, at, stop)
        at = stop
        if has_strings and (commas + lists > MAX_TEXTS or at - start > MAX_TEXT_BYTES):
            raise RequestError(
                f"the JSON of the request: expected at most {MAX_TEXTS} strings in a list, and "
                f"{MAX_TEXT_BYTES} bytes, got more; send binary data"
            )
        if depth <= 0:
            last = body.rfind(b"]", start, at) + 1
            return ListText(body, start, last, commas - body.count(b",", last, at), has_strings)
        if at >= end:
            raise RequestError("the JSON of the request: a list 'data' does not end")
        if body[at] != ord('"') or not has_texts:
            return at
        has_strings = True
        at = min(end, _after(_INSIDE, body, at + 1, end) + 1)


def _count(mark: bytes, body: Buffer, at: int, end: int) -> int:
    return sum(body.count(mark, a, min(end, a + _STEP)) for a in range(at, end, _STEP))


def _after(pattern: re.Pattern[bytes], body: Buffer, at: int, end: int) -> int:
    """The end of the longest match of a pattern."""
    while match := pattern.match(body, at, stop := min(end, at + _STEP)):
        at = match.end()
        if at < stop - 1:  # otherwise a pair of characters may have been split
            break
    return at
