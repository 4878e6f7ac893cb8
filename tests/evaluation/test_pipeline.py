import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.evaluation.files import DataError
from jaxdelegate.evaluation.pipeline import Decode, Outputs, Pipeline, Waits, _Pending

SHAPE = (4, 1, 1, 3)
TIMEOUT = 30  # of waits that only a broken pipeline lets run out


def paths(n: int) -> list[Path]:
    return [Path(str(i)) for i in range(n)]


def number(path: Path) -> np.ndarray:
    return np.full(SHAPE[1:], float(path.name), np.float32)


def double(images: np.ndarray) -> tuple[np.ndarray, ...]:
    return (images[:, 0, 0, 0] * 2, images[:, 0, 0])


Invoke = Callable[[np.ndarray], Outputs]


def pipeline(
    decode: Decode = number, invoke: Invoke = double, workers: int = 2, in_flight: int = 1
) -> Pipeline:
    def start(images: np.ndarray) -> Callable[[], Outputs]:
        outputs = invoke(images)
        return lambda: outputs

    dtype = np.dtype(np.float32)
    return Pipeline(
        decode, start, input_shape=SHAPE, dtype=dtype, workers=workers, in_flight=in_flight
    )


@pytest.mark.parametrize("n", [1, 4, 5, 50])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_every_image_in_order(n: int, workers: int, in_flight: int) -> None:
    batches = list(pipeline(workers=workers, in_flight=in_flight).run(paths(n)))
    assert [b.first for b in batches] == list(range(0, n, 4))
    outputs = [o for b in batches for o in b.outputs if o is not None]
    assert [float(first) for first, _ in outputs] == [2.0 * i for i in range(n)]
    assert [second.tolist() for _, second in outputs] == [[float(i)] * 3 for i in range(n)]


def test_batches_keep_their_images_from_a_later_start() -> None:
    seen = []

    def invoke(images: np.ndarray) -> tuple[np.ndarray, ...]:
        seen.append(images[:, 0, 0, 0].tolist())
        return double(images)

    list(pipeline(invoke=invoke).run(paths(10), 4))
    assert seen == [[4, 5, 6, 7], [8, 9, 0, 0]]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_damaged_images_are_zeros_in_their_batch_and_have_no_output(in_flight: int) -> None:
    seen = []

    def decode(path: Path) -> np.ndarray:
        if path.name in ("1", "4", "5", "6", "7"):
            raise DataError(f"bad {path.name}")
        return number(path)

    def invoke(images: np.ndarray) -> tuple[np.ndarray, ...]:
        seen.append(images[:, 0, 0, 0].tolist())
        return double(images)

    run = pipeline(decode, invoke, in_flight=in_flight)
    batches = list(run.run(paths(9)))
    assert seen == [[0, 0, 2, 3], [8, 0, 0, 0]]  # a batch of nothing good is not run
    assert [b.errors for b in batches] == [
        (None, "bad 1", None, None),
        ("bad 4", "bad 5", "bad 6", "bad 7"),
        (None,),
    ]
    assert [o is None for b in batches for o in b.outputs] == [
        e is not None for b in batches for e in b.errors
    ]
    assert run.times.preprocessing.count == run.times.inference.count == 4


def test_images_are_decoded_while_the_model_runs() -> None:
    decoded = {str(i): threading.Event() for i in range(12)}

    def decode(path: Path) -> np.ndarray:
        decoded[path.name].set()
        return number(path)

    def invoke(images: np.ndarray) -> tuple[np.ndarray, ...]:
        following = int(images[0, 0, 0, 0]) + 4  # of the next batch, not waited for yet
        assert following >= 12 or decoded[str(following)].wait(TIMEOUT)
        return double(images)

    assert len(list(pipeline(decode, invoke).run(paths(12)))) == 3


def test_the_model_runs_while_images_are_decoded() -> None:
    first_batch = threading.Event()

    def decode(path: Path) -> np.ndarray:
        assert int(path.name) < 4 or first_batch.wait(TIMEOUT)
        return number(path)

    def invoke(images: np.ndarray) -> tuple[np.ndarray, ...]:
        first_batch.set()
        return double(images)

    assert len(list(pipeline(decode, invoke).run(paths(8)))) == 2


def test_the_number_of_decoded_images_is_limited() -> None:
    begun: list[str] = []
    run = pipeline(lambda path: begun.append(path.name) or number(path), workers=1)  # type: ignore[func-returns-value]
    batches = run.run(paths(400))
    next(batches)
    time.sleep(0.2)
    assert 4 <= len(begun) <= 16  # the first batch and two ahead, perhaps a third
    batches.close()
    assert len(begun) <= 20


def test_slow_decoding_shows_as_decode_wait() -> None:
    def decode(path: Path) -> np.ndarray:
        time.sleep(0.01)
        return number(path)

    run = pipeline(decode)
    list(run.run(paths(60)))
    assert run.waits.decode_wait > 0.8
    assert run.waits.device_wait < 0.2
    assert run.waits.device_busy < 0.2


def test_a_slow_model_shows_as_device_wait() -> None:
    def invoke(images: np.ndarray) -> tuple[np.ndarray, ...]:
        time.sleep(0.05)
        return double(images)

    run = pipeline(invoke=invoke)
    list(run.run(paths(60)))
    assert run.waits.device_busy > 0.8
    assert run.waits.device_wait > 0.5  # the last batches do not wait
    assert run.waits.decode_wait < 0.2


def test_threads_end_with_the_run_even_after_an_error() -> None:
    def invoke(_images: np.ndarray) -> tuple[np.ndarray, ...]:
        raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        list(pipeline(invoke=invoke).run(paths(100)))
    assert not [t for t in threading.enumerate() if t.name.startswith("decode")]


def test_a_bug_in_decoding_is_not_damage() -> None:
    def decode(_path: Path) -> np.ndarray:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(pipeline(decode).run(paths(4)))


def test_latencies() -> None:
    def invoke(images: np.ndarray) -> tuple[np.ndarray, ...]:
        time.sleep(0.02)
        return double(images)

    run = pipeline(invoke=invoke)
    list(run.run(paths(8)))
    inference = run.times.inference
    assert inference.count == 8
    assert inference.avg_us >= 5000  # a quarter of a batch of four
    assert inference.min_us <= inference.avg_us <= inference.max_us
    assert inference.sum_us == pytest.approx(8 * inference.avg_us)


def test_waits_in_a_line() -> None:
    waits = Waits(wall_s=12.34, decode_wait=0.5, device_wait=0.0625, device_busy=0.25)
    assert str(waits) == "decode wait 50.0%, device wait 6.2%, device busy 25.0% of 12.3 s"


# ---- several batches in flight


class Device:
    """Records batches that are started (`+`) and waited for (`-`), by their first image."""

    def __init__(self, *, fails_at: int = -1, interrupts_at: int = -1) -> None:
        self.events: list[str] = []
        self._fails_at, self._interrupts_at = fails_at, interrupts_at

    def start(self, images: np.ndarray) -> Callable[[], Outputs]:
        first = int(images[0, 0, 0, 0])
        self.events.append(f"+{first}")
        if first == self._fails_at:
            raise RuntimeError("device lost")

        def results() -> Outputs:
            self.events.append(f"-{first}")
            if first == self._interrupts_at:
                raise KeyboardInterrupt
            return double(images)

        return results


def on_device(device: Device, in_flight: int, decode: Decode = number) -> Pipeline:
    return Pipeline(
        decode,
        device.start,
        input_shape=SHAPE,
        dtype=np.dtype(np.float32),
        workers=2,
        in_flight=in_flight,
    )


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [(1, "+0 -0 +4 -4 +8 -8"), (2, "+0 +4 -0 +8 -4 -8"), (3, "+0 +4 +8 -0 -4 -8")],
)
def test_the_number_of_batches_in_flight(
    monkeypatch: pytest.MonkeyPatch, in_flight: int, expected: str
) -> None:
    monkeypatch.setattr(_Pending, "is_decoded", True)  # else it depends on the decoders' speed
    device = Device()
    assert [b.first for b in on_device(device, in_flight).run(paths(12))] == [0, 4, 8]
    assert " ".join(device.events) == expected


def test_a_batch_that_is_not_decoded_holds_up_no_result() -> None:
    first_is_out = threading.Event()

    def decode(path: Path) -> np.ndarray:
        assert int(path.name) < 4 or first_is_out.wait(TIMEOUT)
        return number(path)

    device = Device()
    for _ in on_device(device, 2, decode).run(paths(8)):
        first_is_out.set()
    assert device.events == ["+0", "-0", "+4", "-4"]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_an_error_comes_after_the_batches_before_it(in_flight: int) -> None:
    batches = on_device(Device(fails_at=8), in_flight).run(paths(16))
    assert [next(batches).first, next(batches).first] == [0, 4]
    with pytest.raises(RuntimeError, match="device lost"):
        next(batches)
    assert not [t for t in threading.enumerate() if t.name.startswith("decode")]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_an_interrupt_is_not_deferred(in_flight: int) -> None:
    batches = on_device(Device(interrupts_at=4), in_flight).run(paths(40))
    assert next(batches).first == 0
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert not [t for t in threading.enumerate() if t.name.startswith("decode")]
