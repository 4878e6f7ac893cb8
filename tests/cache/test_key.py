"""Parts of keys are the same in every process, and different for every difference."""

import dataclasses
import enum
import json
import os
import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.cache.key import Key, Part
from jaxdelegate.digests import array_bytes


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


DIFFERENT = [
    None,
    0,
    1,
    True,
    1.0,
    "1",
    b"1",
    Color.RED,
    Point(1),
    Point(1, 1.0),
    (1,),
    ((1,),),
    {"a": 1},
    {"a": 2},
    frozenset({1, 2}),
    np.dtype(np.float32),
    np.dtype(ml_dtypes.bfloat16),
    np.zeros(2, np.float32),
    np.zeros((2, 1), np.float32),
    np.zeros(2, np.int32),
    np.zeros(0, np.float32),
    np.array([b"a", b"b"], object),
    np.array([b"ab", b""], object),
    float("nan"),
    float("inf"),
    -0.0,
    np.float32(0.1),
    np.int8(-7),
    np.bool_(False),
    types.MappingProxyType({"a": 3}),
]


def test_different_values_have_different_parts() -> None:
    digests = [Part.of(value).digest for value in DIFFERENT]
    same = [(a, b) for i, a in enumerate(DIFFERENT) for j, b in enumerate(DIFFERENT[:i])
            if digests[i] == digests[j]]  # fmt: skip
    assert same == []


def test_lists_and_tuples_are_the_same() -> None:
    assert Part.of([1, (2, 3)]) == Part.of((1, [2, 3]))


def test_sets_and_mappings_do_not_depend_on_the_process() -> None:
    code = (
        "from jaxdelegate.cache.key import Part;"
        "print(Part.of([frozenset(['a','b','c','d']), {'x': 1, 'y': {'z'}}]).digest)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.parametrize("value", [object(), lambda: 0, [object()], {"a": object()}])
def test_what_may_print_differently_next_time_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be part of a cache key"):
        Part.of(value)


def test_bytes_of_arrays_are_in_c_order() -> None:
    a = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert bytes(array_bytes(a.T)) == np.ascontiguousarray(a.T).tobytes()
    assert bytes(array_bytes(a[:, ::2])) == a[:, ::2].tobytes()
    assert bytes(array_bytes(np.float32(3).reshape(()))) == np.float32(3).tobytes()
    assert bytes(array_bytes(np.ones(3, ml_dtypes.int4))) == b"\1\1\1"


def test_keys_compare_by_part() -> None:
    a = Key({"model": Part.of(1), "device": Part.of("x")})
    b = Key({"model": Part.of(1), "device": Part.of("y"), "new": Part.of(0)})
    assert a.differing_parts(b) == ["device", "new"]
    assert a.differing_parts(Key.from_json(json.loads(json.dumps(a.as_json())))) == []
