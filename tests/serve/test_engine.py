"""Results of served models equal those of interpreters: in batches, by signature, one by one."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import InterpreterError, ModelError, StoppedError
from jaxdelegate.measuring.tolerance import assert_close
from jaxdelegate.op_lowering.options import CustomOptions, ReducerOptions, ReshapeOptions
from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.metrics import ModelRecorder
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2 import descriptions
from jaxdelegate.serve.v2.model import ServedModel, open_model
from jaxdelegate.serve.v2.programs import BatchProgram
from jaxdelegate.serve.v2.requests import InferRequest
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once
from tests.support.descriptions import (
    AXIS_LABELS,
    IMAGE,
    NAME,
    Described,
    metadata,
    with_archive,
)
from tests.support.detectors import color_detector

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("compiled_once")

Outputs = Mapping[str, np.ndarray]


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def serve(
    tmp_path: Path,
    content: bytes,
    test: Callable[[list[ServedModel]], Any],
    recorder: ModelRecorder | None = None,
    **settings: Any,
) -> Any:
    """Run a test coroutine with the served signatures of a file."""
    path = tmp_path / "net.tflite"
    path.write_bytes(content)

    async def main() -> Any:
        served = open_model(path, "net", ServeSettings(**settings), recorder)
        served[0].worker.start()
        assert served[0].worker.wait_until_ready(120)
        try:
            return await test(served)
        finally:
            await asyncio.to_thread(served[0].worker.close)

    return asyncio.run(main())


async def ask(model: ServedModel, *arrays: np.ndarray, **parameters: Any) -> Outputs:
    names = [tensor.name for tensor in model.inputs]
    inputs = dict(zip(names, arrays, strict=True))
    return await model.infer(InferRequest(inputs, parameters))


def shapes(model: ServedModel) -> list[tuple[int, ...]]:
    return [t.shape for t in (*model.inputs, *model.outputs)]


def mean_over(axis: int) -> bytes:
    """[1, 2, 4] minus its mean over an axis; over axis 0, items of a batch would mix."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 4), np.float32, "x")
    mean, y = builder.tensor((1, 2, 4), name="mean"), builder.tensor((1, 2, 4), name="y")
    axes = builder.constant(np.array([axis], np.int32))
    builder.operator("MEAN", [x, axes], [mean], ReducerOptions(keep_dims=True))
    builder.operator("SUB", [x, mean], [y])
    builder.outputs(y)
    return builder.build()


def flat(first: int) -> bytes:
    """[1, 2, 4] as [first, 8 / first]."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 4), np.float32, "x")
    shape = (first, 8 // first)
    y = builder.tensor(shape, name="y")
    builder.operator("RESHAPE", [x], [y], ReshapeOptions(shape))
    builder.outputs(y)
    return builder.build()


def two_signatures() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    y = builder.tensor((1, 4), name="y")
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    other = builder.subgraph("other")
    a, b = other.input((1, 4), np.float32, "a"), other.input((1, 4), np.float32, "b")
    c = other.tensor((1, 4), name="c")
    other.operator("ADD", [a, b], [c])
    other.outputs(c)
    builder.signature("add", {"left": a, "right": b}, {"sum": c}, subgraph=1)
    builder.signature("serving_default", {"x": x}, {"negative": y})
    return builder.build()


def test_every_request_gets_its_rows(
    tmp_path: Path, network: bytes, rng: np.random.Generator
) -> None:
    """Requests of one to three items at once, in batches of up to four."""
    given = [floats(rng, 1 + n % 3, 8, 8, 3) for n in range(20)]

    async def test(served: list[ServedModel]) -> list[Outputs]:
        (model,) = served
        assert shapes(model) == [(-1, 8, 8, 3), (-1, 1, 1, 4)]
        assert model.worker.is_ready
        return await asyncio.gather(*(ask(model, x) for x in given))

    recorder = ModelRecorder()
    answers = serve(tmp_path, network, test, recorder, max_batch_size=4)
    interpreter = jd.Interpreter(model_content=network, experimental_delegates=[jd.JaxDelegate()])
    for x, outputs in zip(given, answers, strict=True):
        single = [run_once(interpreter, [item[None]])[0] for item in x]
        assert_close(outputs["probabilities"], np.concatenate(single))
    read = recorder.read()
    counts = read.values
    assert read.reasons == {}
    assert counts["inference_count"] == sum(map(len, given))
    assert counts["inference_request_success"] == len(given)
    assert counts["compile_count"] == 3  # 1, 2 and 4


def test_outputs_without_shapes_in_the_file_have_planned_ones(tmp_path: Path) -> None:
    """Those of a detector; it runs for each image of a batch."""

    async def test(served: list[ServedModel]) -> None:
        found = [(-1, 10, 4), (-1, 10), (-1, 10), (-1,)]
        assert shapes(served[0]) == [(-1, 32, 32, 3), *found]
        outputs = await ask(served[0], np.zeros((2, 32, 32, 3), np.float32))
        assert [array.shape[1:] for array in outputs.values()] == [shape[1:] for shape in found]

    serve(tmp_path, color_detector(has_output_shapes=False), test, max_batch_size=2)


def test_the_padding_of_a_batch_does_not_matter(
    tmp_path: Path, network: bytes, rng: np.random.Generator
) -> None:
    """A batch of three after one of four: the fourth row is zeros again, not the last item."""
    four = floats(rng, 4, 8, 8, 3)

    async def test(served: list[ServedModel]) -> tuple[Outputs, Outputs]:
        return await ask(served[0], four), await ask(served[0], four[:3])

    whole, part = serve(tmp_path, network, test, max_batch_size=4)
    assert part["probabilities"].shape == (3, 1, 1, 4)
    np.testing.assert_array_equal(part["probabilities"], whole["probabilities"][:3])


def test_later_runs_do_not_change_results(
    tmp_path: Path, network: bytes, rng: np.random.Generator
) -> None:
    async def test(served: list[ServedModel]) -> None:
        first = await ask(served[0], floats(rng, 2, 8, 8, 3))
        kept = {name: array.copy() for name, array in first.items()}
        await ask(served[0], floats(rng, 2, 8, 8, 3))
        np.testing.assert_equal(first, kept)

    serve(tmp_path, network, test, max_batch_size=2)


def test_an_output_that_is_the_input_is_a_copy(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    y = builder.tensor((1, 4), name="y")
    builder.operator("NEG", [x], [y])
    builder.outputs(x, y)

    async def test(served: list[ServedModel]) -> None:
        first = await ask(served[0], np.ones((2, 4), np.float32))
        await ask(served[0], np.zeros((2, 4), np.float32))
        np.testing.assert_array_equal(first["x"], 1)

    serve(tmp_path, builder.build(), test, max_batch_size=2)


def test_a_graph_without_batches_runs_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rng: np.random.Generator
) -> None:
    caplog.set_level("INFO", "jaxdelegate")
    given = [floats(rng, 1, 2, 4) for _ in range(5)]

    async def test(served: list[ServedModel]) -> list[Outputs]:
        (model,) = served
        assert model.batch_sizes == ()
        assert shapes(model) == [(1, 2, 4), (4, 2)]
        return await asyncio.gather(*(ask(model, x) for x in given))

    for x, outputs in zip(given, serve(tmp_path, flat(4), test), strict=True):
        np.testing.assert_array_equal(outputs["y"], x.reshape(4, 2))
    assert "net is served with max_batch_size=1" in caplog.text
    assert "'y' does not follow the batch: its shape is [4, 2] for one item" in caplog.text


def test_a_graph_that_would_mix_a_batch_computes_each_item(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """x minus its mean over a batch of 1 is zero, independent of other items in the batch."""
    three = floats(rng, 3, 2, 4)

    async def test(served: list[ServedModel]) -> Outputs:
        assert served[0].batch_sizes == (1, 2, 4)
        return await ask(served[0], three)

    answer = serve(tmp_path, mean_over(0), test, max_batch_size=4)
    np.testing.assert_array_equal(answer["y"], np.zeros((3, 2, 4), np.float32))


def test_signatures_have_separate_names(tmp_path: Path, rng: np.random.Generator) -> None:
    a, b = floats(rng, 2, 4), floats(rng, 2, 4)

    async def test(served: list[ServedModel]) -> None:
        models = {model.name: model for model in served}
        assert list(models) == ["net", "net:serving_default", "net:add"]
        answers = await asyncio.gather(
            ask(models["net"], a),
            ask(models["net:serving_default"], b),
            ask(models["net:add"], a, b),
        )
        np.testing.assert_array_equal(answers[0]["negative"], -a)
        np.testing.assert_array_equal(answers[1]["negative"], -b)
        np.testing.assert_array_equal(answers[2]["sum"], a + b)

    serve(tmp_path, two_signatures(), test, max_batch_size=2)


def test_other_shapes_are_other_batches(tmp_path: Path, rng: np.random.Generator) -> None:
    """An open dimension besides the batch: each length is compiled when it is first requested."""
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x", shape_signature=(-1, -1))
    y = builder.tensor((1, 4), name="y", shape_signature=(-1, -1))
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    given = [floats(rng, 1 + n % 2, 4 + n % 3) for n in range(12)]

    async def test(served: list[ServedModel]) -> list[Outputs]:
        assert shapes(served[0]) == [(-1, -1), (-1, -1)]
        return await asyncio.gather(*(ask(served[0], x) for x in given))

    for x, outputs in zip(
        given, serve(tmp_path, builder.build(), test, max_batch_size=2), strict=True
    ):
        np.testing.assert_array_equal(outputs["y"], -x)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input": np.zeros((0, 8, 8, 3), np.float32)}, "expected at least one item, got 0"),
        ({"input": np.zeros((3, 8, 8, 3), np.float32)}, "has 3 items, but the largest batch is 2"),
    ],
)
def test_requests_that_do_not_fit(
    tmp_path: Path, network: bytes, inputs: dict[str, np.ndarray], message: str
) -> None:
    async def test(served: list[ServedModel]) -> None:
        with pytest.raises(RequestError, match=message) as error:
            await served[0].infer(InferRequest(inputs))
        assert error.value.status == 400

    serve(tmp_path, network, test, max_batch_size=2)


def test_parameters_that_do_not_fit(tmp_path: Path) -> None:
    x = np.zeros((1, 2, 4), np.float32)

    async def test(served: list[ServedModel]) -> None:
        with pytest.raises(RequestError, match="timeout: expected a positive integer"):
            await ask(served[0], x, timeout=0)
        with pytest.raises(RequestError, match="sequence_id: net has no states"):
            await ask(served[0], x, sequence_id=1)
        await ask(served[0], x, timeout=10**8)

    serve(tmp_path, flat(1), test, max_batch_size=1)


def test_without_the_delegate_the_reference_runs_item_by_item(
    tmp_path: Path, network: bytes, rng: np.random.Generator
) -> None:
    x = floats(rng, 1, 8, 8, 3)

    async def test(served: list[ServedModel]) -> Outputs:
        assert served[0].batch_sizes == ()
        return await ask(served[0], x)

    answer = serve(tmp_path, network, test, use_delegate=False)
    expected = run_once(jd.Interpreter(model_content=network), [x])[0]
    np.testing.assert_array_equal(answer["probabilities"], expected)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Could not open"):
        open_model(tmp_path / "absent.tflite", "net")


def test_a_model_that_cannot_run_is_never_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    y = builder.tensor((1, 4), name="y")
    builder.operator("NoSuchOperator", [x], [y], CustomOptions(b""))
    builder.outputs(y)
    path = tmp_path / "net.tflite"
    path.write_bytes(builder.build())

    async def main() -> None:
        (model,) = open_model(path, "net")
        model.worker.start()
        with pytest.raises(InterpreterError, match="NoSuchOperator"):
            model.worker.wait_until_ready(120)
        assert not model.worker.is_ready
        with pytest.raises(RequestError, match=r"net failed.*NoSuchOperator") as error:
            await ask(model, np.zeros((1, 4), np.float32))
        assert error.value.status == 503
        await asyncio.to_thread(model.worker.close)

    asyncio.run(main())
    assert "net: cannot be served: Encountered unresolved custom op: NoSuchOperator" in caplog.text
    assert "Traceback" not in caplog.text


def test_closing_ends_after_the_program_that_is_being_compiled(
    tmp_path: Path, network: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process would abort if it ended while a thread is inside XLA."""
    path = tmp_path / "net.tflite"
    path.write_bytes(network)
    begun, go, sizes = threading.Event(), threading.Event(), []
    prepare = BatchProgram.prepare

    def slow(program: BatchProgram, whole: Any) -> None:
        sizes.append(program.size)
        begun.set()
        assert go.wait(60)
        prepare(program, whole)

    monkeypatch.setattr(BatchProgram, "prepare", slow)

    async def main() -> None:
        (model,) = open_model(path, "net", ServeSettings(max_batch_size=8))
        model.worker.start()
        assert await asyncio.to_thread(begun.wait, 60)
        closing = asyncio.create_task(asyncio.to_thread(model.worker.close))
        await asyncio.sleep(0)
        go.set()
        await closing
        assert sizes == [1]  # of 1, 2, 4 and 8
        assert not model.worker.is_ready
        with pytest.raises(StoppedError, match="net was closed before it was compiled"):
            model.worker.wait_until_ready(0)
        assert "serve net" not in [thread.name for thread in threading.enumerate()]

    asyncio.run(main())


SECOND_START = """
    import asyncio, sys, numpy as np
    from jaxdelegate.serve.v2.model import open_model
    from jaxdelegate.serve.metrics import ModelRecorder
    from jaxdelegate.serve.v2.requests import InferRequest
    from jaxdelegate.serve.settings import ServeSettings

    recorder = ModelRecorder()
    options = ServeSettings(delegate_options={"serialization_dir": sys.argv[2]}, max_batch_size=2)
    (model,) = open_model(sys.argv[1], "net", options, recorder)
    model.worker.start()
    model.worker.wait_until_ready()
    x = np.ones((2, 8, 8, 3), np.float32)
    answer = asyncio.run(model.infer(InferRequest({"input": x})))
    counts = recorder.read().values
    print(answer["probabilities"].ravel().tolist())
    print(counts["compile_count"], counts["cache_hit_count"], "jax" in sys.modules)
"""


@pytest.mark.slow
def test_a_start_from_the_cache_imports_no_jax(tmp_path: Path, network: bytes) -> None:
    (tmp_path / "net.tflite").write_bytes(network)
    command = [sys.executable, "-c", textwrap.dedent(SECOND_START)]
    command += [str(tmp_path / "net.tflite"), str(tmp_path / "cache")]
    first, second = (
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    )
    assert first.splitlines()[0] == second.splitlines()[0]
    assert first.splitlines()[1] == "2 0 True"
    assert second.splitlines()[1] == "0 2 False"


def test_labels_and_normalization_of_the_file(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x, y = builder.input((1, 2, 2, 3), name="x"), builder.tensor((1, 2, 2, 3), name="y")
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    picture = Described("picture", IMAGE, mean=(127.5,), std=(128,))
    classes = Described("classes", files={"labels.txt": AXIS_LABELS})
    builder.metadata(NAME, metadata([picture], [classes]))
    content = with_archive(builder.build(), {"labels.txt": "cat\ndog"})

    async def test(served: list[ServedModel]) -> None:
        shown = descriptions.metadata(served[0])
        scaling = {"content": "image", "mean": [127.5], "std": [128.0]}
        assert shown["inputs"][0]["parameters"] == scaling
        assert shown["outputs"][0]["parameters"] == {"labels": ["cat", "dog"]}

    serve(tmp_path, content, test)
