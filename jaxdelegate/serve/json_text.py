"""JSON of requests, whose memory is bounded by its text: no object is made for what may be refused.

Python's `json` makes objects many times as large as the text, and lets no other thread run
meanwhile. So the lists `data` of tensors are cut out of the text first; what is left must be short.
A list is read in parts, when the model and the request's shape say what must be in it.
"""

import bisect
import collections
import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

from jaxdelegate.serve.datatypes import MAX_TEXTS, shown
from jaxdelegate.serve.records import RequestError

Buffer = bytes | bytearray

MAX_OUTLINE = 1 << 20  # bytes of a request's JSON besides the lists of tensors' data
MAX_TEXT_BYTES = 1 << 24  # of a list with strings: Python's may take four bytes for each
LIST = "data\0"  # the field that stands for a list of `data`: its number among the lists
_STEP = 1 << 16  # bytes that are searched or read at once: between two steps other threads run

# A key, since the quote ahead of it ends no string in valid JSON.
_DATA = re.compile(rb'[{,\s]"data"\s*:\s*(?=\[)')
_OUTSIDE = re.compile(rb'[^"{}]++')
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)++', re.DOTALL)
_MISPLACED = re.compile(rb"[^\s,\[]\s*\[|\]\s*[^\s,\]]")  # a bracket beside a number
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[],"))


class Constant(float):
    """NaN, Infinity or -Infinity in JSON, told apart from a number too large for a double."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListText:
    """A JSON list that is not read yet.

    Attributes:
        body: has it.
        start: of its first bracket.
        end: after its last one.
        commas: in it, outside of strings.
        has_strings: whether there are any.
    """

    body: Buffer
    start: int
    end: int
    commas: int
    has_strings: bool

    @property
    def is_nested(self) -> bool:
        """Whether its first element is a list."""
        inner = re.compile(rb"\s*\[").match(self.body, self.start + 1, self.end)
        return inner is not None

    @property
    def length(self) -> int:
        """How many elements it has, if it is flat."""
        blank = re.compile(rb"\s*+\]").match(self.body, self.start + 1, self.end)
        return 0 if blank is not None else self.commas + 1

    def read(self) -> list[Any]:
        """All of it, nested as it is.

        Raises:
            ValueError: it is no JSON.
        """
        found: list[Any] = _read(memoryview(self.body)[self.start : self.end])
        return found

    def flat(self) -> Iterator[list[Any]]:
        """Some elements after the other, of a flat list without strings.

        Raises:
            ValueError: it is no JSON.
        """
        for at, stop in self._parts(self.start + 1, self.end - 1):
            yield _read(b"[" + self.body[at:stop] + b"]")

    def nested(self, shape: tuple[int, ...]) -> Iterator[list[Any]]:
        """Some elements after the other, of lists without strings that are nested as a shape.

        Raises:
            ValueError: they are nested otherwise, or are no JSON.
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
            if 0 in shape:  # commas of lists alone
                if numbers.translate(None, b", \t\r\n"):
                    raise NestingError
            else:
                yield _read(b"[" + numbers + b"]")
        if seen != len(skeleton):
            raise NestingError

    def _parts(self, at: int, end: int) -> Iterator[tuple[int, int]]:
        """Pieces of the text between commas."""
        while at < end:
            stop = end
            if end - at > _STEP:
                stop = self.body.rfind(b",", at, at + _STEP)
                if stop < 0:
                    raise ValueError(f"an element of more than {_STEP} characters")
            yield at, stop
            at = stop + 1


class NestingError(ValueError):
    """Lists that are not nested as a shape."""


def _skeleton(shape: tuple[int, ...]) -> bytes:
    """The brackets and commas of lists nested as a shape."""
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


def _read(text: Buffer | memoryview) -> Any:
    return json.loads(str(text, "utf-8"), parse_constant=Constant, object_pairs_hook=_fields)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        raise twice(next(name for name, count in counts.items() if count > 1))
    return found


def twice(name: str) -> RequestError:
    """What is raised where an object has a field twice."""
    name = "data" if name == LIST else name
    return RequestError(f"the JSON of the request has the field {shown(name)} twice")


def read_object(
    body: Buffer, end: int | None = None, *, has_texts: bool = False
) -> tuple[dict[str, Any], list[ListText]]:
    """A JSON object in UTF-8.

    Args:
        body: begins with it.
        end: where it ends; None: with the body.
        has_texts: whether a list may have strings; else one that has is read with the object, as
            all lists of a small request are.

    Returns:
        The object; where a field `data` has a list, without objects, it may have the field
        `LIST` in its place: the list's number among those of the second result.

    Raises:
        RequestError: no JSON, no object, a field twice, or more than `MAX_OUTLINE` bytes besides
            the lists.
    """
    end = len(body) if end is None else end
    outline = None if end <= _STEP else _Outline(body, end, has_texts=has_texts)
    if outline is None:  # it is small, whatever it becomes
        text, lists, place = body[:end], [], _same
    else:
        text, lists, place = outline.text, outline.lists, outline.place
    try:
        found = _read(text)
    except RecursionError:
        raise RequestError("the JSON of the request is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the JSON of the request: byte {place(error.start)} is not UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        at = place(len(error.doc[: error.pos].encode()))
        raise RequestError(f"the JSON of the request: {error.msg} at byte {at}") from None
    except RequestError:
        raise
    except ValueError:  # Python's limit of digits
        raise RequestError("the JSON of the request has an integer of too many digits") from None
    if not isinstance(found, dict):
        raise RequestError(f"the JSON of the request: want an object, got {shown(found)}")
    return found, lists


def _same(position: int) -> int:
    return position


class _Outline:
    """The JSON without its lists of data, and where its parts stood."""

    def __init__(self, body: Buffer, end: int, *, has_texts: bool) -> None:
        self.text = bytearray()
        self.lists: list[ListText] = []
        self._places: list[tuple[int, int]] = []  # in the text, in the body
        at = 0
        while True:
            found = _DATA.search(body, at, min(end, at + MAX_OUTLINE + 1))
            self._add(body, at, end if found is None else found.start() + 1)
            if found is None:
                return
            listed = _list_at(body, found.end(), end, has_texts)
            if isinstance(listed, int):  # no other list begins up to there
                at = listed
                self._add(body, found.start() + 1, at)
            else:
                self.text += b'"data\\u0000":%d' % len(self.lists)
                self.lists.append(listed)
                at = listed.end

    def _add(self, body: Buffer, start: int, end: int) -> None:
        if len(self.text) + end - start > MAX_OUTLINE:
            raise RequestError(
                f"the JSON of the request: want at most {MAX_OUTLINE} bytes besides the lists "
                "'data' of its inputs, got more"
            )
        self._places.append((len(self.text), start))
        self.text += body[start:end]

    def place(self, position: int) -> int:
        """The place in the body of a position in the text."""
        here, there = self._places[bisect.bisect(self._places, (position, len(self.text))) - 1]
        return there + position - here


def _list_at(body: Buffer, start: int, end: int, has_texts: bool) -> ListText | int:
    """The list that begins there, or where it has an object, or a string that it may not have."""
    at, depth, commas, lists, has_strings = start, 0, 0, 0, False
    while True:
        stop = _after(_OUTSIDE, body, at, end)
        if stop == at + 1 and body[at] == ord(","):  # between two strings
            commas += 1
        else:
            opened = _count(b"[", body, at, stop)
            depth += opened - _count(b"]", body, at, stop)
            lists, commas = lists + opened, commas + _count(b",", body, at, stop)
        at = stop
        if has_strings and (commas + lists > MAX_TEXTS or at - start > MAX_TEXT_BYTES):
            raise RequestError(
                f"the JSON of the request: want at most {MAX_TEXTS} strings in a list, and "
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
    """Where the run of a pattern ends."""
    while found := pattern.match(body, at, stop := min(end, at + _STEP)):
        at = found.end()
        if at < stop - 1:  # else a pair of characters may be cut in two
            break
    return at
