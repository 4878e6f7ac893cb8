"""The interpreter has the methods, dictionaries and errors of tf.lite.Interpreter."""

import gc
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType as StockResolver

import jaxdelegate
from jaxdelegate.errors import InterpreterError, ModelError, OptionError, TensorError
from jaxdelegate.interpreter import Interpreter, InterpreterWithCustomOps, OpResolverType
from jaxdelegate.op_lowering.options import AddOptions, MulOptions, ResizeBilinearOptions
from jaxdelegate.testing import ModelBuilder, assert_close

DELEGATED = pytest.mark.parametrize("delegated", [False, True], ids=["reference", "delegated"])


def doubling_model() -> bytes:
    """y = resize(x + x); x is [1, 2, 3, 1] with a free batch."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 3, 1), np.float32, "x", shape_signature=(-1, 2, 3, 1))
    total = builder.tensor((1, 2, 3, 1), name="total")
    size = builder.constant(np.array([4, 6], np.int32), "size")
    y = builder.tensor((1, 4, 6, 1), name="y")
    builder.operator("ADD", [x, x], [total], AddOptions())
    builder.operator("RESIZE_BILINEAR", [total, size], [y], ResizeBilinearOptions())
    builder.outputs(y)
    builder.signature("twice", {"image": x}, {"larger": y})
    return builder.build()


def custom_model(name: str) -> bytes:
    """One custom operator."""
    builder = ModelBuilder()
    x = builder.input((2,))
    y = builder.tensor((2,))
    builder.operator(name, [x], [y])
    builder.outputs(y)
    return builder.build()


def interpreter_for(content: bytes, delegated: bool, **more: object) -> Interpreter:
    delegates = [jaxdelegate.JaxDelegate()] if delegated else None
    return Interpreter(model_content=content, experimental_delegates=delegates, **more)


def stock(content: bytes) -> StockInterpreter:
    return StockInterpreter(model_content=content)


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(6, dtype=np.float32).reshape(1, 2, 3, 1)


@DELEGATED
def test_runs_as_the_stock_interpreter(delegated: bool, x: np.ndarray) -> None:
    ours, theirs = interpreter_for(doubling_model(), delegated), stock(doubling_model())
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
    y = ours.get_output_details()[0]["index"]
    assert_close([ours.get_tensor(y)], [theirs.get_tensor(y)])


@DELEGATED
def test_details_are_the_stock_ones(delegated: bool) -> None:
    ours, theirs = interpreter_for(doubling_model(), delegated), stock(doubling_model())
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    for name in ("get_input_details", "get_output_details"):
        for mine, other in zip(getattr(ours, name)(), getattr(theirs, name)(), strict=True):
            np.testing.assert_equal(mine, other)
    n = len(ours.get_tensor_details())
    np.testing.assert_equal(ours.get_tensor_details(), theirs.get_tensor_details()[:n])
    assert ours.get_signature_list() == theirs.get_signature_list()
    assert ours._get_full_signature_list() == theirs._get_full_signature_list()
    assert ours.num_subgraphs() == theirs.num_subgraphs() == 1


def test_operator_details_are_the_stock_ones() -> None:
    kind = {"experimental_op_resolver_type": OpResolverType.BUILTIN_REF}
    ours = Interpreter(model_content=doubling_model(), **kind)
    assert [op["op_name"] for op in ours._get_ops_details()] == ["ADD", "RESIZE_BILINEAR"]
    np.testing.assert_equal(ours._get_op_details(0), stock(doubling_model())._get_op_details(0))
    with pytest.raises(ValueError, match="Invalid node index"):
        ours._get_op_details(2)


@DELEGATED
def test_resized_batches(delegated: bool, x: np.ndarray) -> None:
    interpreter = interpreter_for(doubling_model(), delegated)
    for batch in (1, 8, 3, 8):
        interpreter.resize_tensor_input(0, [batch, 2, 3, 1], strict=True)
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.concatenate([x * (i + 1) for i in range(batch)]))
        interpreter.invoke()
        y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        assert y.shape == tuple(interpreter.get_output_details()[0]["shape"]) == (batch, 4, 6, 1)
        assert_close([y[-1]], [y[0] * batch])


def test_strict_resize_changes_free_dimensions_only() -> None:
    interpreter = Interpreter(model_content=doubling_model())
    with pytest.raises(
        RuntimeError, match=r"dimension 1 of tensor 0 with value 2 to 5.*only allows"
    ):
        interpreter.resize_tensor_input(0, [1, 5, 3, 1], strict=True)
    with pytest.raises(RuntimeError, match="rank 4 to rank 3"):
        interpreter.resize_tensor_input(0, [5, 3, 1], strict=True)
    with pytest.raises(RuntimeError, match="Invalid tensor index 99"):
        interpreter.resize_tensor_input(99, [1])
    with pytest.raises(TensorError, match="sizes must not be negative"):
        interpreter.resize_tensor_input(0, [-1, 2, 3, 1])


@DELEGATED
def test_a_resize_needs_a_new_allocation(delegated: bool) -> None:
    interpreter = interpreter_for(doubling_model(), delegated)
    interpreter.allocate_tensors()
    interpreter.resize_tensor_input(0, [2, 2, 3, 1])
    with pytest.raises(InterpreterError, match="Invoke called on model that is not ready"):
        interpreter.invoke()


@DELEGATED
def test_shapes_that_an_operator_rejects(delegated: bool) -> None:
    interpreter = interpreter_for(doubling_model(), delegated)
    interpreter.resize_tensor_input(0, [2, 3])
    with pytest.raises(
        InterpreterError, match=r"Node number 1 \(RESIZE_BILINEAR\) failed to prepare"
    ):
        interpreter.allocate_tensors()
    interpreter.resize_tensor_input(0, [1, 2, 3, 1])
    interpreter.allocate_tensors()


def test_errors_before_allocation(x: np.ndarray) -> None:
    interpreter = Interpreter(model_content=doubling_model())
    with pytest.raises(RuntimeError, match="Invoke called on model that is not ready"):
        interpreter.invoke()
    with pytest.raises(ValueError, match=r"Tensor data is null\. Run allocate_tensors"):
        interpreter.get_tensor(0)
    with pytest.raises(ValueError, match=r"Tensor is unallocated\. Try calling allocate_tensors"):
        interpreter.set_tensor(0, x)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            np.zeros((1, 2, 3, 1), np.uint8),
            "Got value of type UINT8 but expected type FLOAT32 for input 0, name: x",
        ),
        (np.zeros((1, 2, 3, 1)), "'x' wants float32 [1, 2, 3, 1], got float64 [1, 2, 3, 1]"),
        (np.zeros((2, 3, 1), np.float32), "Dimension mismatch. Got 3 but expected 4 for input 0."),
        (np.zeros((2, 2, 3, 1), np.float32), "Got 2 but expected 1 for dimension 0 of input 0."),
    ],
)
@DELEGATED
def test_set_tensor_says_what_was_expected(
    delegated: bool, value: np.ndarray, message: str
) -> None:
    interpreter = interpreter_for(doubling_model(), delegated)
    interpreter.allocate_tensors()
    with pytest.raises(TensorError) as caught:
        interpreter.set_tensor(0, value)
    assert message in str(caught.value)


@DELEGATED
def test_a_constant_cannot_be_set(delegated: bool) -> None:
    """Its value is part of compiled programs, so that it would be ignored."""
    builder = ModelBuilder()
    x, y = builder.input((2,), name="x"), builder.tensor((2,), name="y")
    w = builder.constant(np.float32([2, 3]), "w")
    builder.operator("MUL", [x, w], [y], MulOptions())
    builder.outputs(y)
    interpreter = interpreter_for(builder.build(), delegated)
    interpreter.allocate_tensors()
    with pytest.raises(TensorError, match="'w' is a constant"):
        interpreter.set_tensor(w, np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        interpreter.tensor(w)()[:] = 0
    interpreter.set_tensor(x, np.float32([1, 1]))
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(y), [2, 3])


@pytest.mark.parametrize(
    "words", [["a", "é"], [b"a", "é"], np.array(["a", "é"]), np.array(["a", "é"], object)], ids=repr
)
def test_strings_are_stored_as_utf8(words: Any) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,), object, "x"), builder.tensor((1, 2), object, "y")
    builder.operator("RESHAPE", [x, builder.constant(np.array([1, 2], np.int32))], [y])
    builder.outputs(y)
    interpreter = Interpreter(model_content=builder.build())
    interpreter.allocate_tensors()
    interpreter.set_tensor(x, words)
    interpreter.invoke()
    assert interpreter.get_tensor(y).tolist() == [[b"a", "é".encode()]]


@pytest.mark.parametrize("index", [-1, 4, 10**9])
def test_tensor_index_out_of_range(index: int) -> None:
    interpreter = Interpreter(model_content=doubling_model())
    interpreter.allocate_tensors()
    for call in (
        interpreter.get_tensor,
        interpreter.tensor(index),
        lambda i: interpreter.set_tensor(i, 0),
    ):
        with pytest.raises(
            ValueError, match=f"Invalid tensor index {index} exceeds max tensor index 3"
        ):
            call() if call.__name__ == "view" else call(index)


@DELEGATED
def test_views_are_live(delegated: bool, x: np.ndarray) -> None:
    interpreter = interpreter_for(doubling_model(), delegated)
    interpreter.allocate_tensors()
    give = interpreter.tensor(0)
    give()[...] = x
    interpreter.invoke()
    take = interpreter.tensor(interpreter.get_output_details()[0]["index"])
    first = take().copy()
    give().fill(0)
    interpreter.invoke()
    assert first.max() > 0
    assert take().max() == 0


@DELEGATED
def test_a_held_view_forbids_running(delegated: bool) -> None:
    interpreter = interpreter_for(doubling_model(), delegated)
    interpreter.allocate_tensors()
    view = interpreter.tensor(0)()
    part = view[0, 0]
    del view
    for call in (interpreter.invoke, interpreter.allocate_tensors):
        with pytest.raises(RuntimeError, match="There is at least 1 reference to internal data"):
            call()
    assert part.shape == (3, 1)
    del part
    gc.collect()
    interpreter.invoke()


@DELEGATED
def test_get_tensor_returns_a_copy(delegated: bool, x: np.ndarray) -> None:
    interpreter = interpreter_for(doubling_model(), delegated)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.get_tensor(0)[...] = 9
    interpreter.invoke()
    y = interpreter.get_output_details()[0]["index"]
    kept = interpreter.get_tensor(y)
    interpreter.set_tensor(0, 0 * x)
    interpreter.invoke()
    assert kept.max() > 0
    assert interpreter.get_tensor(y).max() == 0


@DELEGATED
def test_intermediates_are_kept_on_request_only(delegated: bool, x: np.ndarray) -> None:
    total = 1
    for preserve in (False, True):
        interpreter = interpreter_for(
            doubling_model(), delegated, experimental_preserve_all_tensors=preserve
        )
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, x)
        interpreter.invoke()
        if preserve:
            assert_close([interpreter.get_tensor(total)], [2 * x])
        else:
            with pytest.raises(TensorError, match="experimental_preserve_all_tensors"):
                interpreter.get_tensor(total)


@DELEGATED
def test_signature_runner(delegated: bool, x: np.ndarray) -> None:
    interpreter, theirs = interpreter_for(doubling_model(), delegated), stock(doubling_model())
    runner, other = interpreter.get_signature_runner(), theirs.get_signature_runner("twice")
    np.testing.assert_equal(runner.get_input_details(), other.get_input_details())
    for batch in (1, 2):
        image = np.repeat(x, batch, 0)
        (got,), (want,) = runner(image=image).values(), other(image=image).values()
        assert_close([got], [want])
    np.testing.assert_equal(runner.get_output_details(), other.get_output_details())


def test_names_of_signatures_are_sorted() -> None:
    """LiteRT keeps names in std::map; the file has another order."""
    builder = ModelBuilder()
    first, second = (builder.input((2,), np.float32, name) for name in ("first", "second"))
    total, product = builder.tensor((2,), name="total"), builder.tensor((2,), name="product")
    builder.operator("ADD", [first, second], [total], AddOptions())
    builder.operator("MUL", [first, second], [product], MulOptions())
    builder.outputs(total, product)
    ends = {"b": first, "a": second, "\u00e9": first}, {"z": total, "Z": product, "y": total}
    builder.signature("t", *ends)
    builder.signature("s", *ends)
    content = builder.build()
    arrays = {"b": np.float32([1, 2]), "a": np.float32([3, 4]), "\u00e9": np.float32([1, 2])}
    shown = []
    for interpreter in (Interpreter(model_content=content), stock(content)):
        runner = interpreter.get_signature_runner("t")
        results = {name: array.tolist() for name, array in runner(**arrays).items()}
        details = runner.get_input_details(), runner.get_output_details()
        full = interpreter._get_full_signature_list()
        shown.append(repr((interpreter.get_signature_list(), full, [*map(list, details)], results)))
    assert shown[0] == shown[1]


def test_signature_runner_errors(x: np.ndarray) -> None:
    interpreter = Interpreter(model_content=doubling_model())
    with pytest.raises(ValueError, match='Invalid signature_key provided: "thrice"'):
        interpreter.get_signature_runner("thrice")
    runner = interpreter.get_signature_runner()
    with pytest.raises(ValueError, match="expected 1 vs provided 0"):
        runner()
    with pytest.raises(ValueError, match=r"Invalid Input name \(picture\) for SignatureDef"):
        runner(picture=x)


def test_constructor_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`model_path` or `model_content` must be specified"):
        Interpreter()
    with pytest.raises(ValueError, match="Can't both provide"):
        Interpreter("a.tflite", b"b")
    with pytest.raises(ValueError, match="num_threads should >= 1"):
        Interpreter("a.tflite", num_threads=0)
    with pytest.raises(ValueError, match="type of num_threads should be int"):
        Interpreter("a.tflite", num_threads="2")
    with pytest.raises(ValueError, match="Unrecognized passed in op resolver type"):
        Interpreter("a.tflite", experimental_op_resolver_type=7)
    with pytest.raises(ModelError, match=r"missing\.tflite"):
        Interpreter(str(tmp_path / "missing.tflite"))
    with pytest.raises(TypeError, match=r"expected delegates such as JaxDelegate\(\), got object"):
        Interpreter(model_content=doubling_model(), experimental_delegates=[object()])


def test_the_stock_resolver_types_are_accepted() -> None:
    from ai_edge_litert.interpreter import OpResolverType as Theirs

    Interpreter(model_content=doubling_model(), experimental_op_resolver_type=Theirs.BUILTIN_REF)


def test_a_path_and_its_content_are_the_same_model(tmp_path: Path, x: np.ndarray) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(doubling_model())
    from_path, from_bytes = Interpreter(path), Interpreter(model_content=doubling_model())
    results = [i.get_signature_runner()(image=x)["larger"] for i in (from_path, from_bytes)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("NoSuchOperator", "jaxdelegate.register_operator adds a custom operator"),
        ("edgetpu-custom-op", "use the file from before edgetpu_compiler"),
        ("ethos-u", "use the file from before Arm's Vela"),
    ],
)
def test_an_unknown_custom_operator_is_named(name: str, remedy: str) -> None:
    interpreter = Interpreter(model_content=custom_model(name))
    with pytest.raises(RuntimeError, match=f"Encountered unresolved custom op: {name}.*{remedy}"):
        interpreter.allocate_tensors()


def test_registerers_are_accepted_where_no_operator_is_missing() -> None:
    """Without registerers a missing operator is an error of allocate_tensors, as before."""
    known, content = ["TFLite_Detection_PostProcess_Registerer", lambda _: None], doubling_model()
    for registerers in (None, [], known):
        interpreter = InterpreterWithCustomOps(registerers, model_content=content)
        interpreter.allocate_tensors()
    unknown = custom_model("NoSuchOperator")
    InterpreterWithCustomOps(model_content=unknown)
    with pytest.raises(OptionError, match=r"no operator NoSuchOperator: add it in Python"):
        InterpreterWithCustomOps(known, model_content=unknown)


@pytest.mark.litert
def test_the_wrapper_is_that_of_the_stock_interpreter() -> None:
    content = doubling_model()
    kind = StockResolver.BUILTIN_REF
    stock = StockInterpreter(model_content=content, experimental_op_resolver_type=kind)
    ours, theirs = Interpreter(model_content=content)._interpreter, stock._interpreter
    for method in ("NumNodes", "InputIndices", "OutputIndices"):
        np.testing.assert_array_equal(getattr(ours, method)(), getattr(theirs, method)())
    for method in ("NodeName", "NodeInputs", "NodeOutputs"):
        for node in range(ours.NumNodes()):
            np.testing.assert_array_equal(
                getattr(ours, method)(node), getattr(theirs, method)(node)
            )
    ours.ResetVariableTensors()


def test_arguments_are_those_of_the_stock_interpreter_in_their_order() -> None:
    stock = list(inspect.signature(StockInterpreter).parameters)
    ours = list(inspect.signature(Interpreter).parameters)
    assert ours[: len(stock)] == stock
    with pytest.raises(TypeError, match="experimental_unknown"):
        Interpreter(model_content=doubling_model(), experimental_unknown=True)  # type: ignore[call-arg]
