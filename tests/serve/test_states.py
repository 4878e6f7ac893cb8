"""Models with states: the results of each sequence equal those of a separate interpreter."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import InterpreterError
from jaxdelegate.measuring.tolerance import assert_close
from jaxdelegate.op_lowering.options import (
    CallOnceOptions,
    RandomOptions,
    SVDFOptions,
    VarHandleOptions,
)
from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.metrics import ModelRecorder
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2.model import ServedModel, open_model
from jaxdelegate.serve.v2.requests import InferRequest
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs, run_once
from tests.support.combinations import one_of

MODELS = Path(__file__).parents[2].parent / "shared" / "models" / "networks"
STREAMING = ("v2__okay_nabu", "soundstream_encoder", "trained_lstm")
SEQUENCES, STEPS = 6, 4


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def svdf() -> bytes:
    """SVDF with a variable tensor: [1, 4] -> [1, 3], a memory of 5."""
    rng, builder = np.random.default_rng(1), ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    features, times = (builder.constant(floats(rng, 3, n)) for n in (4, 5))
    state = builder.tensor((1, 15), name="memory", is_variable=True)
    y = builder.tensor((1, 3), name="y")
    builder.operator("SVDF", [x, features, times, None, state], [y], SVDFOptions(rank=1))
    builder.outputs(y)
    return builder.build()


def summing() -> bytes:
    """A resource variable that sums all inputs, starting from the value that CALL_ONCE assigns."""
    builder, resource = ModelBuilder(), np.dtype("V4")
    x = builder.input((1, 4), np.float32, "x")
    handle, old = builder.tensor((1,), resource), builder.tensor((1, 4), name="old")
    y = builder.tensor((1, 4), name="y")
    builder.operator("CALL_ONCE", [], [], CallOnceOptions(init_subgraph_index=1))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="sum"))
    builder.operator("READ_VARIABLE", [handle], [old])
    builder.operator("ADD", [old, x], [y])
    builder.operator("ASSIGN_VARIABLE", [handle, y], [])
    builder.outputs(y)
    first = builder.subgraph("initialize")
    own = first.tensor((1,), resource)
    value = first.constant(np.array([[1, 2, 3, 4]], np.float32))
    first.operator("VAR_HANDLE", [], [own], VarHandleOptions(shared_name="sum"))
    first.operator("ASSIGN_VARIABLE", [own, value], [])
    return builder.build()


def drawing() -> bytes:
    """Random numbers, different in each call, added to the input."""
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    shape = builder.constant(np.array([1, 4], np.int32))
    drawn, y = builder.tensor((1, 4), name="drawn"), builder.tensor((1, 4), name="y")
    builder.operator("RANDOM_UNIFORM", [shape], [drawn], RandomOptions(seed=3, seed2=4))
    builder.operator("ADD", [x, drawn], [y])
    builder.outputs(y)
    return builder.build()


def interpreter(content: bytes, *, use_delegate: bool) -> jd.Interpreter:
    delegates = [jd.JaxDelegate()] if use_delegate else None
    return jd.Interpreter(model_content=content, experimental_delegates=delegates)


def serve(
    tmp_path: Path,
    content: bytes,
    test: Callable[[ServedModel], Any],
    recorder: ModelRecorder | None = None,
    **settings: Any,
) -> Any:
    path = tmp_path / "net.tflite"
    path.write_bytes(content)

    async def main() -> Any:
        (model, *_) = open_model(path, "net", ServeSettings(**settings), recorder)
        model.worker.start()
        assert model.worker.wait_until_ready(250)
        try:
            return await test(model)
        finally:
            await asyncio.to_thread(model.worker.close)

    return asyncio.run(main())


async def ask(model: ServedModel, given: Sequence[np.ndarray], **parameters: Any) -> Any:
    names = [tensor.name for tensor in model.inputs]
    outputs = await model.infer(InferRequest(dict(zip(names, given, strict=True)), parameters))
    return [outputs[tensor.name] for tensor in model.outputs]


async def interleaved(
    model: ServedModel, sequences: Sequence[Sequence[Sequence[np.ndarray]]]
) -> list[list[Any]]:
    """Run all sequences step by step; the requests of one step are in the queue together."""
    answers: list[list[Any]] = [[] for _ in sequences]
    for step in range(len(sequences[0])):
        outputs = await asyncio.gather(
            *(
                ask(
                    model,
                    sequence[step],
                    sequence_id=f"s{n}",
                    sequence_start=step == 0,
                    sequence_end=step == len(sequence) - 1,
                )
                for n, sequence in enumerate(sequences)
            )
        )
        for own, output in zip(answers, outputs, strict=True):
            own.append(output)
    return answers


@pytest.mark.parametrize("use_delegate", [True, False], ids=["delegated", "reference"])
@pytest.mark.parametrize("model", [svdf, summing, drawing])
def test_interleaved_sequences_equal_separate_interpreters(
    tmp_path: Path, rng: np.random.Generator, model: Callable[[], bytes], use_delegate: bool
) -> None:
    content, recorder = model(), ModelRecorder()
    given = [[[floats(rng, 1, 4)] for _ in range(STEPS)] for _ in range(SEQUENCES)]
    answers = serve(
        tmp_path,
        content,
        lambda served: interleaved(served, given),
        recorder,
        use_delegate=use_delegate,
    )
    for sequence, own in zip(given, answers, strict=True):
        alone = interpreter(content, use_delegate=use_delegate)
        expected = [run_once(alone, arrays) for arrays in sequence]
        np.testing.assert_equal(own, expected)
    again = run_once(interpreter(content, use_delegate=use_delegate), given[0][1])[0]
    assert not np.array_equal(answers[0][1][0], again)  # states matter
    assert recorder.read().values["session_count"] == 0  # all have ended


def test_a_request_outside_a_sequence_has_initial_states_and_keeps_none(tmp_path: Path) -> None:
    one = [np.ones((1, 4), np.float32)]

    async def test(model: ServedModel) -> None:
        first = await ask(model, one)
        np.testing.assert_equal(first[0], [[2, 3, 4, 5]])
        np.testing.assert_equal(await ask(model, one, sequence_id=1, sequence_start=True), first)
        np.testing.assert_equal(await ask(model, one), first)
        np.testing.assert_equal(await ask(model, one, sequence_id=1), [[[3, 4, 5, 6]]])
        np.testing.assert_equal(await ask(model, one, sequence_id=1, sequence_start=True), first)

    serve(tmp_path, summing(), test)


def test_requests_of_a_sequence_run_in_order_of_arrival(tmp_path: Path) -> None:
    given = [[np.full((1, 4), float(n), np.float32)] for n in range(20)]

    async def test(model: ServedModel) -> list[Any]:
        return await asyncio.gather(
            *(ask(model, x, sequence_id=5, sequence_start=n == 0) for n, x in enumerate(given))
        )

    answers = serve(tmp_path, summing(), test)
    sums = np.cumsum([x[0][0] for x in given], 0) + np.array([1, 2, 3, 4])
    np.testing.assert_equal(np.array([outputs[0][0] for outputs in answers]), sums)


def test_sequences_that_are_refused(tmp_path: Path) -> None:
    one = [np.ones((1, 4), np.float32)]

    async def refused(model: ServedModel, **parameters: Any) -> tuple[int, str]:
        with pytest.raises(RequestError) as error:
            await ask(model, one, **parameters)
        return error.value.status, str(error.value)

    async def test(model: ServedModel) -> None:
        assert model.batch_sizes == ()
        status, message = await refused(model, sequence_id=7)
        assert status == 400
        assert "7 is not open" in message
        await ask(model, one, sequence_id=7, sequence_start=True)
        status, message = await refused(model, sequence_id=8, sequence_start=True)
        assert status == 503
        assert "1 sequences are open" in message
        await ask(model, one, sequence_id=7, sequence_end=True)
        assert (await refused(model, sequence_id=7))[0] == 400

    recorder = ModelRecorder()
    serve(tmp_path, summing(), test, recorder, session_count=1)
    assert recorder.read().reasons == {"REJECTED": 3}


def test_requests_outside_sequences_form_batches_with_initial_states(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Variable tensors have one row for each item; sequences continue between batches."""
    content = svdf()
    given = [floats(rng, 1 + n % 2, 4) for n in range(8)]
    steps = [[floats(rng, 1, 4)] for _ in range(3)]

    async def test(model: ServedModel) -> tuple[list[Any], list[Any]]:
        assert model.batch_sizes == (1, 2, 4)
        tasks, own = [], []
        for n, arrays in enumerate(steps):
            tasks += [asyncio.create_task(ask(model, [x])) for x in given]
            own.append(await ask(model, arrays, sequence_id=1, sequence_start=n == 0))
        with pytest.raises(RequestError, match="has 2 items, but the largest batch is 1"):
            await ask(model, [given[1]], sequence_id=1)
        return await asyncio.gather(*tasks), own

    alone, own = serve(tmp_path, content, test, max_batch_size=4)
    for x, (y,) in zip([*given, *given, *given], alone, strict=True):
        for item, row in zip(x, y, strict=True):
            fresh = run_once(interpreter(content, use_delegate=False), [item[None]])[0]
            assert_close(row, fresh[0])
    sequence = interpreter(content, use_delegate=True)
    np.testing.assert_equal(own, [run_once(sequence, arrays) for arrays in steps])


def two_on_one_variable() -> bytes:
    """Signatures `add`, which initializes a resource variable to zeros, and `read`."""
    builder, resource = ModelBuilder(), np.dtype("V4")
    builder.operator("CALL_ONCE", [], [], CallOnceOptions(init_subgraph_index=2))
    x, handle = builder.input((1, 4), np.float32, "x"), builder.tensor((1,), resource)
    old, y = builder.tensor((1, 4), name="old"), builder.tensor((1, 4), name="y")
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="sum"))
    builder.operator("READ_VARIABLE", [handle], [old])
    builder.operator("ADD", [old, x], [y])
    builder.operator("ASSIGN_VARIABLE", [handle, y], [])
    builder.outputs(y)
    builder.signature("add", {"x": x}, {"y": y})
    reader = builder.subgraph("reader")
    scale, own = reader.input((1, 4), np.float32, "scale"), reader.tensor((1,), resource)
    value, scaled = reader.tensor((1, 4), name="value"), reader.tensor((1, 4), name="scaled")
    reader.operator("VAR_HANDLE", [], [own], VarHandleOptions(shared_name="sum"))
    reader.operator("READ_VARIABLE", [own], [value])
    reader.operator("MUL", [value, scale], [scaled])
    reader.outputs(scaled)
    builder.signature("read", {"scale": scale}, {"scaled": scaled}, subgraph=1)
    first = builder.subgraph("first")
    own, zeros = first.tensor((1,), resource), first.constant(np.zeros((1, 4), np.float32))
    first.operator("VAR_HANDLE", [], [own], VarHandleOptions(shared_name="sum"))
    first.operator("ASSIGN_VARIABLE", [own, zeros], [])
    first.outputs()
    return builder.build()


def test_signatures_share_the_states_of_a_sequence(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(two_on_one_variable())
    one, two = np.ones((1, 4), np.float32), np.full((1, 4), 2, np.float32)

    async def main() -> None:
        served = {model.name: model for model in open_model(path, "net")}
        served["net"].worker.start()
        assert served["net"].worker.wait_until_ready(120)
        add, read = served["net:add"], served["net:read"]
        for number, x, is_start in (("a", one, True), ("b", one, True), ("a", two, False)):
            await ask(add, [x], sequence_id=number, sequence_start=is_start)
        np.testing.assert_equal(await ask(read, [two], sequence_id="a"), [6 * one])
        np.testing.assert_equal(await ask(read, [two], sequence_id="b"), [2 * one])
        with pytest.raises(InterpreterError, match="read before anything was assigned to it"):
            await ask(read, [two])  # of a sequence that was not started
        await asyncio.to_thread(add.worker.close)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.is_dir(), reason="the real models are not here")
@pytest.mark.parametrize("name", one_of(3, STREAMING))
def test_five_hundred_sequences_of_a_streaming_network(tmp_path: Path, name: str) -> None:
    content = (MODELS / f"{name}.tflite").read_bytes()
    details = interpreter(content, use_delegate=False).get_input_details()
    given = [[random_inputs(details, 3 * n + k) for k in range(3)] for n in range(500)]
    options = {"serialization_dir": str(tmp_path / "programs")}  # compiled once
    answers = serve(
        tmp_path, content, lambda model: interleaved(model, given), delegate_options=options
    )
    delegate = jd.JaxDelegate(options)
    for n in range(0, 500, 50):
        own = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
        np.testing.assert_equal(answers[n], [run_once(own, arrays) for arrays in given[n]])
