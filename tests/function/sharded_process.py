"""One of two processes that share a mesh of CPU devices, for test_sharded.py.

python sharded_process.py ADDRESS PROCESS
"""

import sys
import warnings
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.testing import assert_close
from tests.function import graphs
from tests.function.sharded_cases import wide

PARTS = 3  # devices of each process


def own_rows(array: jax.Array) -> np.ndarray:
    """This process's parts of a batch, each once, in order."""
    parts = {s.index[0].start or 0: np.asarray(s.data) for s in array.addressable_shards}
    return np.concatenate([parts[start] for start in sorted(parts)])


def batches_over_both(process: int) -> None:
    over = jax.make_mesh((2 * PARTS,), ("data",))
    rng = np.random.default_rng(process)
    for make in (lambda: graphs.classifier(first=-1), graphs.classifier):
        model, own = jd.load(make()), rng.normal(size=(6, 3, 3, 2)).astype(np.float32)
        (y,) = model.sharded(over)(own)
        assert y.shape == (12, 5)
        want = [model.batched(2)(own[i : i + 2])[0] for i in range(0, 6, 2)]
        np.testing.assert_array_equal(own_rows(y), np.concatenate(want))
    with pytest.raises(jd.TensorError, match="this process's part of the batch is 4"):
        model.sharded(over)(own[:4])


def integers_over_both(process: int) -> None:
    over = jax.make_mesh((2 * PARTS,), ("data",))
    model = jd.load(graphs.integers(), quant_mode="integer")
    own = np.random.default_rng(process).integers(-128, 128, (9, 4), np.int8)
    (y,) = model.sharded(over)(own)
    np.testing.assert_array_equal(own_rows(y), model(own)[0])


def weights_over_both(_: int) -> None:
    """Each process has half of the wide weights, and both have the whole batch."""
    over = jax.make_mesh((2,), ("model",), devices=[jax.devices()[0], jax.devices()[PARTS]])
    assert {d.process_index for d in over.devices.flat} == {0, 1}
    model, x = jd.load(wide()), np.random.default_rng(2).normal(size=(4, 16)).astype(np.float32)
    sharded = model.sharded(over, None, weights="model")
    assert [s.data.shape for s in sharded.params["w1"].addressable_shards] == [(128, 16)]
    (y,) = sharded(x)
    assert_close([own_rows(y)], model(x), accumulated=256)


def options_that_measure(_: int) -> None:
    over = jax.make_mesh((2 * PARTS,), ("data",))
    model = jd.load(wide(), inference_preference="sustained_speed")
    with pytest.raises(jd.OptionError, match="measures in every process"):
        model.sharded(over)


def main(address: str, process: int) -> None:
    options: dict[str, Any] = {
        "jax_num_cpu_devices": PARTS,
        "jax_cpu_collectives_implementation": "gloo",
    }
    for name, value in options.items():
        jax.config.update(name, value)
    jax.distributed.initialize(address, num_processes=2, process_id=process)
    assert (jax.process_count(), jax.device_count()) == (2, 2 * PARTS)
    warnings.simplefilter("error")
    for check in batches_over_both, integers_over_both, weights_over_both, options_that_measure:
        check(process)
        print(check.__name__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
