"""Reading what XLA has compiled: damaged bytes, object files, attributes, numbers."""

import random
import struct

import jax
import numpy as np
import pytest
from jax import lax

from jaxdelegate.pjrt import client
from jaxdelegate.thunks import instructions, linker
from jaxdelegate.thunks.compiled import Compiled, UnknownError

ERRORS = (*client.LOAD_ERRORS, struct.error)  # those that `DirectCalls` takes for "not possible"

pytestmark = pytest.mark.usefixtures("built")


@pytest.fixture(scope="module")
def serialized() -> bytes:
    def function(x: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array]:
        table = np.arange(-8, 8, dtype=np.int32) * 1000
        total = lax.fori_loop(0, n, lambda i, c: c * 0.5 + x[i % 4], x[0])
        return total, jax.numpy.asarray(table)[x.astype(int)[0] % 16]

    lowered = jax.jit(function).lower(np.ones((4, 8), np.float32), np.int32(3))
    return client.serialized(lowered.compile().runtime_executable())


def read(data: bytes) -> np.ndarray:
    compiled = Compiled(data)
    assert compiled.results
    code = linker.load(compiled.object_files)
    return np.array(instructions.Assembler(compiled, code.symbols, {}).words)


def test_damaged_bytes_are_errors(serialized: bytes) -> None:
    assert read(serialized).size > 0
    rng, failed = random.Random(0), 0
    for number in range(400):
        data = bytearray(serialized)
        if number % 4 == 0:
            del data[rng.randrange(len(data)) :]
        else:
            for _ in range(rng.randrange(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read(bytes(data))
        except ERRORS:
            failed += 1
    assert failed > 100


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("{}", []),
        ("{a = dense<[1, -2]> : tensor<2xi64>}", [(5, [1, -2])]),
        (
            "{b = dense<7> : tensor<3xi64>, a = dense<0> : tensor<1xi64>}",
            [(5, [0]), (5, [7, 7, 7])],
        ),
        (
            "{range = dense<[-3.40282347E+38, 0x7F800000]> : tensor<2xf32>}",
            [(11, list(np.array([-3.40282347e38, np.inf], np.float32)))],
        ),
    ],
)
def test_attributes(text: str, wanted: list[tuple[int, list[float]]]) -> None:
    words = instructions._attributes(text)
    count, at, found = words[0], 1, []
    for _ in range(count):
        element, size, length = words[at : at + 3]
        data = np.array(words[at + 3 : at + 3 + length], np.int64).tobytes()
        dtype = np.int64 if element == 5 else np.float32
        found.append((element, list(np.frombuffer(data, dtype)[:size])))
        at += 3 + length
    assert (found, at) == (wanted, len(words))


@pytest.mark.parametrize(
    "text",
    [
        "{a = 1 : i64}",
        '{a = "text"}',
        '{a = dense<"0x00"> : tensor<2xi64>}',
        "{a = dense<[1, 2]> : tensor<3xi64>}",
        "{a = dense<1> : tensor<1xi8>}",
        "{a = dense<1> : tensor<1xi64>",
        "{a = dense<1> : tensor<1xi64>, b}",
    ],
)
def test_other_attributes(text: str) -> None:
    with pytest.raises(UnknownError):
        instructions._attributes(text)


def test_no_object_files() -> None:
    assert not linker.load([]).symbols


def test_object_files_of_another_kind(serialized: bytes) -> None:
    (first, *_) = Compiled(serialized).object_files
    for at, value in ((0, 0), (4, 1), (16, 2), (18, 183)):  # ELF, 64 bits, an object file, x86-64
        data = bytearray(first)
        data[at] = value
        with pytest.raises(ValueError, match="not an"):
            linker.load([memoryview(data)])
