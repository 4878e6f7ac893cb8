"""Digests of a model's content, which identify it in the caches of programs and weights.

BLAKE3 where its package is installed, which takes a quarter of SHA-256's time; otherwise SHA-256. A
digest says which algorithm computed it.
"""

import contextlib
import hashlib
import importlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxdelegate.kernels.processor import core_count
from jaxdelegate.model.source import ModelSource, Source, open_source
from jaxdelegate.quant.packing import in_memory

SHA256, BLAKE3 = "sha256", "blake3"
_HASHES: dict[str, Callable[..., Any]] = {SHA256: hashlib.sha256}
with contextlib.suppress(ImportError):
    _HASHES[BLAKE3] = importlib.import_module("blake3").blake3
PREFERRED = BLAKE3 if BLAKE3 in _HASHES else SHA256

# Bytes per chunk: threads share the chunks of a large file, and small ones need few calls.
_CHUNKS = {SHA256: 4 << 20, BLAKE3: 32 << 20}
_BATCH = 1 << 20  # bytes of small chunks that one thread digests together
_SHARE = 32 << 20  # bytes that justify another thread
_MOST_THREADS = 8

_DIGEST = re.compile(rf"(?:({BLAKE3})-)?[0-9a-f]{{64}}")


def fingerprint(source: ModelSource) -> str:
    """A token for the content of a model, for `model_token` or as a name of the model.

    Args:
        source: a path, or the content of a file. External buffers in other files are not included.

    Returns:
        64 hexadecimal digits; the same for a file and for its bytes, on every machine.

    Raises:
        ModelError: the file cannot be opened.
    """
    return file_digest(source, SHA256)


def file_digest(source: ModelSource, algorithm: str = PREFERRED) -> str:
    """The digest of a whole file, which is mapped, or of its content."""
    return digests([open_source(source).content], algorithm)[0]


def source_digest(source: Source) -> str:
    """The digest of a model's content. Pages of a mapped file are dropped as they are read."""
    content = source.content.cast("B") if source.content.nbytes else memoryview(b"")
    step = _CHUNKS[PREFERRED]

    def drop(_: int, at: int) -> None:
        if source.file is not None:
            source.file.drop_pages(content[at : at + step])

    return _combined([len(content)], lambda _, at: content[at : at + step], PREFERRED, drop)[0]


def algorithm_of(digest: str) -> str:
    """The algorithm that computed a digest.

    Raises:
        ValueError: the text is not a digest.
    """
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise ValueError(f"{digest!r} is not a digest")
    return found[1] or SHA256


def is_known(algorithm: str) -> bool:
    """Whether this process can compute digests of an algorithm."""
    return algorithm in _HASHES


def digests(buffers: Sequence[memoryview], algorithm: str = PREFERRED) -> list[str]:
    """The digest of each buffer: 64 hexadecimal digits, after `blake3-` unless it is SHA-256.

    It is the algorithm's digest of the buffer's length and of the digest of each chunk: 4 MiB for
    SHA-256, 32 MiB for BLAKE3. Threads share a large buffer.
    """
    views = [b.cast("B") if b.nbytes else memoryview(b"") for b in buffers]
    sizes, size = [len(view) for view in views], _CHUNKS[algorithm]
    return _combined(sizes, lambda i, at: views[i][at : at + size], algorithm)


def read_into(
    files: Sequence[int], buffers: Sequence[memoryview], algorithm: str = PREFERRED
) -> list[str]:
    """Fill each buffer from the start of its open file, and digest it.

    A file that is too short leaves the rest of its buffer unchanged, so the digest differs.
    """

    def chunk(i: int, at: int) -> memoryview:
        part = buffers[i][at : at + _CHUNKS[algorithm]]
        os.preadv(files[i], [part], at)
        return part

    return _combined([len(buffer) for buffer in buffers], chunk, algorithm)


def _combined(
    sizes: Sequence[int],
    chunk: Callable[[int, int], memoryview],
    algorithm: str,
    drop: Callable[[int, int], None] | None = None,
) -> list[str]:
    """The digests of buffers whose chunks `chunk` returns; `drop` is called when one was read."""
    new_hash, step = _HASHES[algorithm], _CHUNKS[algorithm]
    places = [(i, at) for i, size in enumerate(sizes) for at in range(0, size, step)]

    def digested(some: Sequence[tuple[int, int]]) -> list[bytes]:
        found = []
        for place in some:
            found.append(new_hash(chunk(*place)).digest())
            if drop is not None:
                drop(*place)
        return found

    workers = min(-(-sum(sizes) // _SHARE), core_count(), _MOST_THREADS)
    if workers < 2:
        parts = iter(digested(places))
    else:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (only large models)

        with ThreadPoolExecutor(workers) as executor:
            batches = executor.map(digested, _batches(places, sizes, step))
            parts = itertools.chain.from_iterable(list(batches))
    label = "" if algorithm == SHA256 else f"{algorithm}-"
    return [
        label
        + new_hash(
            size.to_bytes(8, "little") + b"".join(itertools.islice(parts, -(-size // step)))
        ).hexdigest()
        for size in sizes
    ]


def _batches(
    places: Iterable[tuple[int, int]], sizes: Sequence[int], step: int
) -> list[list[tuple[int, int]]]:
    """Group adjacent chunks into batches of at least `_BATCH` bytes."""
    batches: list[list[tuple[int, int]]] = [[]]
    nbytes = 0
    for i, at in places:
        if nbytes >= _BATCH:
            batches.append([])
            nbytes = 0
        batches[-1].append((i, at))
        nbytes += min(sizes[i] - at, step)
    return batches


def array_digests(arrays: Sequence[np.ndarray]) -> list[str]:
    """The digest of each array's elements, in C order; see `array_bytes`."""
    return digests([array_bytes(array) for array in arrays])


def array_bytes(array: np.ndarray) -> memoryview:
    """An array's bytes in C order, packed if it is; of strings, their text with lengths."""
    if array.dtype.hasobject:
        return memoryview(json.dumps([_text(x) for x in array.ravel().tolist()]).encode())
    flat = np.ascontiguousarray(in_memory(array)).reshape(-1)
    return flat.view(np.uint8).data


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)
