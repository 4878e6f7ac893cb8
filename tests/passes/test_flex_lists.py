"""Lists of TensorFlow's operators, whose elements' shape a loop tells."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import InterpreterError
from jaxdelegate.op_lowering.options import AddOptions, CustomOptions, WhileOptions
from jaxdelegate.testing import ModelBuilder, SubgraphBuilder, assert_close
from tests.support.node_defs import flex_options

STEPS, WIDTH = 4, 3
FILES = Path(__file__).parents[3] / "shared/cases/tflite_users"
FLOAT = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class Sums:
    """list[i] = state = state + x[i], as Keras 3 exports recurrent layers with a free batch.

    Attributes:
        sizes: the shape of the list's elements in the file; -1: any.
        nested: the loop's body writes the list in a loop of its own, of one step.
        writes: False: the body leaves the list as it is.
        declared: whether the file has the dtype of the list's elements.
        reserved: how many elements the list is for.
    """

    sizes: tuple[int, ...] = (-1, WIDTH)
    nested: bool = False
    writes: bool = True
    declared: bool = True
    reserved: int = STEPS

    def build(self) -> bytes:
        builder = ModelBuilder()
        x = builder.input((STEPS, 1, WIDTH), name="x", shape_signature=(STEPS, -1, WIDTH))
        state = builder.input((1, WIDTH), name="state", shape_signature=(-1, WIDTH))
        sizes = builder.constant(np.array(self.sizes, np.int32))
        items = self._list(builder)
        length = builder.constant(np.int32(self.reserved))
        self._flex(builder, "Reserve", [sizes, length], items)
        last = self._loop(builder, [builder.constant(np.int32(0)), items, state, x], 1)
        y = builder.tensor((STEPS, 1, WIDTH), shape_signature=(STEPS, -1, WIDTH))
        self._flex(builder, "Stack", [last, sizes], y, num_elements=STEPS)
        builder.outputs(y)
        self._condition(builder, STEPS)
        body = builder.subgraph("body")
        self._body(body, is_nested=self.nested)
        if self.nested:
            self._condition(builder, 1)
            self._body(builder.subgraph("inner"), is_nested=False)
        return builder.build()

    def _list(self, graph: SubgraphBuilder, *, is_input: bool = False) -> int:
        elements = FLOAT if self.declared else None
        dtype = np.float32 if self.declared else np.dtype("V8")
        return (graph.input if is_input else graph.tensor)((), dtype, elements=elements)

    def _flex(
        self, graph: SubgraphBuilder, name: str, inputs: list[int], y: int, **attributes: int
    ) -> None:
        data = flex_options(f"TensorList{name}", element_dtype=FLOAT, **attributes)
        graph.operator(f"FlexTensorList{name}", inputs, [y], CustomOptions(data))

    def _values(self, graph: SubgraphBuilder, *, are_inputs: bool = False) -> list[int]:
        make = graph.input if are_inputs else graph.tensor
        i, items = make((), np.int32), self._list(graph, is_input=are_inputs)
        state = make((1, WIDTH), shape_signature=(-1, WIDTH))
        return [i, items, state, make((STEPS, 1, WIDTH), shape_signature=(STEPS, -1, WIDTH))]

    def _loop(self, graph: SubgraphBuilder, values: list[int], condition: int) -> int:
        results = self._values(graph)
        graph.operator("WHILE", values, results, WhileOptions(condition, condition + 1))
        return results[1]

    def _condition(self, builder: ModelBuilder, steps: int) -> None:
        graph = builder.subgraph("condition")
        i, *_ = self._values(graph, are_inputs=True)
        goes_on = graph.tensor((), np.bool_)
        graph.operator("LESS", [i, graph.constant(np.int32(steps))], [goes_on])
        graph.outputs(goes_on)

    def _body(self, graph: SubgraphBuilder, *, is_nested: bool) -> None:
        i, items, state, x = self._values(graph, are_inputs=True)
        following, written, new, _ = self._values(graph)
        row = graph.tensor((1, WIDTH), shape_signature=(-1, WIDTH))
        graph.operator("ADD", [i, graph.constant(np.int32(1))], [following], AddOptions())
        graph.operator("GATHER", [x, i], [row])
        graph.operator("ADD", [state, row], [new], AddOptions())
        if is_nested:
            written = self._loop(graph, [i, items, state, x], 3)
            self._flex(graph, "SetItem", [written, i, new], written := self._list(graph))
        elif self.writes:
            self._flex(graph, "SetItem", [items, i, new], written)
        graph.outputs(following, written if self.writes else items, new, x)


def run(
    model: bytes, batch: int, delegates: list[jd.JaxDelegate]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((STEPS, batch, WIDTH), np.float32)
    state = rng.standard_normal((batch, WIDTH), np.float32)
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=delegates)
    interpreter.resize_tensor_input(0, x.shape)
    interpreter.resize_tensor_input(1, state.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.set_tensor(1, state)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), x, state


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("sums", [Sums(), Sums(sizes=(-1, -1)), Sums(nested=True)], ids=repr)
def test_a_loop_writes_a_list(sums: Sums, batch: int) -> None:
    for delegates in ([], [jd.JaxDelegate(require_full_delegation=True)]):
        y, x, state = run(sums.build(), batch, delegates)
        assert_close([y], [np.cumsum(x, axis=0) + state])


def test_elements_of_a_known_shape_need_no_write() -> None:
    y, _, _ = run(Sums(sizes=(2, WIDTH), writes=False).build(), 2, [])
    np.testing.assert_array_equal(y, np.zeros((STEPS, 2, WIDTH), np.float32))


@pytest.mark.parametrize(
    ("sums", "said"),
    [
        (Sums(writes=False), "whose shape nothing tells before the run"),
        (Sums(sizes=(-1, 2)), r"elements are \[2, 3\], not \[-1, 2\]"),
        (Sums(sizes=(3, WIDTH)), r"a list of \[3, 3\] cannot hold \[2, 3\]"),
        (Sums(declared=False), "not a list of float32"),
    ],
    ids=repr,
)
def test_other_lists_are_refused(sums: Sums, said: str) -> None:
    with pytest.raises(InterpreterError, match=said):
        run(sums.build(), 2, [])


def test_a_list_has_the_dtype_of_its_elements() -> None:
    interpreter = jd.Interpreter(model_content=Sums().build())
    (details,) = (d for d in interpreter.get_tensor_details() if d["name"] == "t3")
    assert details["dtype"] is np.object_  # as in stock interpreters


# The first values of the first output in tf.lite of TensorFlow 2.17.1, for the test's inputs.
RECORDED = {
    "15_lstm_flex": [0.24784562, -0.32066563, -0.00857514, -0.26868939],
    "k3_convlstm": [0.03295403, -0.17696986, -0.05213261, 0.14424111],
    "k3_gru_stack": [-0.0115018, -0.01050902, 0.0429699, -0.07920243],
}


@pytest.mark.parametrize("name", RECORDED)
def test_exports_of_keras_run_in_one_partition(name: str) -> None:
    path = FILES / f"{name}.tflite"
    if not path.exists():
        pytest.skip("no models in ../shared/cases/tflite_users")
    delegate = jd.JaxDelegate(require_full_delegation=True)
    results = []
    for delegates in ([], [delegate]):
        interpreter = jd.Interpreter(str(path), experimental_delegates=delegates)
        rng = np.random.default_rng(0)
        for details in interpreter.get_input_details():
            shape = [3 if n < 0 else n for n in details["shape_signature"]]
            interpreter.resize_tensor_input(details["index"], shape)
        interpreter.allocate_tensors()
        for details in interpreter.get_input_details():
            x = rng.standard_normal(details["shape"], np.float32)
            interpreter.set_tensor(details["index"], x)
        interpreter.invoke()
        outputs = interpreter.get_output_details()
        results.append([interpreter.get_tensor(details["index"]) for details in outputs])
    assert_close(results[1], results[0], accumulated=64)
    for outputs in results:
        assert_close([outputs[0].reshape(-1)[:4]], [np.float32(RECORDED[name])], accumulated=64)
    assert delegate.report().n_partitions == 1


def test_a_list_of_too_many_elements_is_refused() -> None:
    with pytest.raises(InterpreterError, match="max_tensor_bytes"):
        run(Sums(reserved=1 << 28).build(), 1, [])
