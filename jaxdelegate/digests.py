"""Digests of a model's content: what names it in the compiled-program cache."""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from jaxdelegate.reading.source import ModelSource, open_source

_CHUNK = 4 << 20  # what one digest is made of; a large file has many
_BATCH = 1 << 20  # bytes of small chunks that one thread takes together
_SHARE = 32 << 20  # bytes that one thread digests while the machine code beside them is loaded
_MOST_THREADS = 8


def fingerprint(source: ModelSource) -> str:
    """A token for the content of a model, for `model_token` and names of one's own.

    Args:
        source: a path, or the content of a file. External buffers in files beside it do not count.

    Returns:
        64 hexadecimal digits; the same for a file and for its bytes.

    Raises:
        ModelError: the file cannot be opened.
    """
    return digests([open_source(source).content])[0]


def digests(buffers: Sequence[memoryview]) -> list[str]:
    """The digest of each buffer, as 64 hexadecimal digits.

    SHA-256 over the length and the SHA-256 of each 4 MiB: threads share a large buffer.
    """
    views = [b.cast("B") if b.nbytes else memoryview(b"") for b in buffers]
    return _combined([len(view) for view in views], lambda i, at: views[i][at : at + _CHUNK])


def read_into(files: Sequence[int], buffers: Sequence[memoryview]) -> list[str]:
    """Fill each buffer from the beginning of its open file, and digest what came.

    A file that is too short leaves the rest of its buffer as it was, and so another digest.
    """

    def chunk(i: int, at: int) -> memoryview:
        part = buffers[i][at : at + _CHUNK]
        os.preadv(files[i], [part], at)
        return part

    return _combined([len(buffer) for buffer in buffers], chunk)


def _combined(sizes: Sequence[int], chunk: Callable[[int, int], memoryview]) -> list[str]:
    places = [(i, at) for i, size in enumerate(sizes) for at in range(0, size, _CHUNK)]

    def sha256(some: Sequence[tuple[int, int]]) -> list[bytes]:
        return [hashlib.sha256(chunk(*place)).digest() for place in some]

    batches = _batches(places, sizes)
    workers = min(-(-sum(sizes) // _SHARE), len(os.sched_getaffinity(0)), _MOST_THREADS)
    if workers < 2:
        parts = iter(sha256(places))
    else:
        with ThreadPoolExecutor(workers) as executor:
            parts = itertools.chain.from_iterable(list(executor.map(sha256, batches)))
    return [_over(size, itertools.islice(parts, -(-size // _CHUNK))) for size in sizes]


def _over(size: int, parts: Iterable[bytes]) -> str:
    return hashlib.sha256(size.to_bytes(8, "little") + b"".join(parts)).hexdigest()


def _batches(
    places: Iterable[tuple[int, int]], sizes: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """Chunks that lie side by side, until they are worth a thread's attention."""
    batches: list[list[tuple[int, int]]] = [[]]
    nbytes = 0
    for i, at in places:
        if nbytes >= _BATCH:
            batches.append([])
            nbytes = 0
        batches[-1].append((i, at))
        nbytes += min(sizes[i] - at, _CHUNK)
    return batches
