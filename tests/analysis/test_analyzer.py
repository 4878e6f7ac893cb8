"""The whole analysis: operators, tensors, signatures, sizes, delegation."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.analysis.analyzer import analyze_model, analyze_with
from jaxdelegate.analysis.records import ModelAnalysis, report
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.op_lowering.options import CallOptions, WhileOptions
from jaxdelegate.testing.builder import ModelBuilder
from tests.support.quantized import scaled

Chain = Callable[..., bytes]


@pytest.fixture(scope="module")
def mobilenet() -> ModelAnalysis:
    return analyze_model(mobilenet_v1(size=64, width=0.25))


def test_mobilenet_is_one_partition(mobilenet: ModelAnalysis) -> None:
    (main,) = mobilenet.subgraphs
    assert len(main.operators) == 31
    assert main.summary == "All 31 operations will run on XLA:CPU, in 1 partition."
    assert {op.partition for op in main.operators} == {0}
    assert {op.reason for op in main.operators} == {None}
    (partition,) = main.partitions
    assert partition.bytes_in == 64 * 64 * 3 * 4
    assert partition.bytes_out == 1001 * 4
    assert partition.flops == main.flops == sum(op.cost.flops or 0 for op in main.operators)
    assert mobilenet.is_compatible


def test_tensors_and_signatures(mobilenet: ModelAnalysis) -> None:
    (main,) = mobilenet.subgraphs
    assert [main.tensors[i].name for i in (*main.inputs, *main.outputs)] == [
        "input",
        "probabilities",
    ]
    weights = main.tensors[1]
    assert (weights.kind, weights.type, weights.shape) == ("constant", "FLOAT32", (8, 3, 3, 3))
    assert weights.stored_bytes == weights.nbytes == 8 * 27 * 4
    assert main.tensors[0].shape_signature == (-1, 64, 64, 3)
    (signature,) = mobilenet.signatures
    assert (signature.key, signature.subgraph) == ("serving_default", 0)
    assert dict(signature.inputs) == {"input": main.inputs[0]}


def test_sizes_add_up() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    builder.operator("ADD", [x, builder.constant(np.arange(4, dtype=np.float32))], [y])
    builder.outputs(y)
    builder.constant(np.zeros(100, np.float32), "unread zeros")
    builder.buffer(b"\1" * 300)
    builder.metadata("note", b"abc")
    model = builder.build()
    sizes = analyze_model(model).sizes
    assert (sizes.file, sizes.buffers) == (len(model), 16 + 400 + 300 + 3)
    assert (sizes.zero_buffers, sizes.unused_buffers, sizes.metadata) == (400, 300, 3)
    assert sizes.subgraphs == (416,)
    outside = analyze_model(builder.build(outside=True)).sizes
    assert (outside.buffers, outside.unused_buffers) == (sizes.buffers, sizes.unused_buffers)


def test_what_stays_on_the_cpu_and_why(chain: Chain) -> None:
    analysis = analyze_model(chain("ADD", "Mystery", "RELU"))
    (main,) = analysis.subgraphs
    assert [op.partition for op in main.operators] == [0, None, 1]
    assert "custom operator without an XLA lowering" in str(main.operators[1].reason)
    assert [p.operators for p in main.partitions] == [(0,), (2,)]
    assert [(p.bytes_in, p.bytes_out) for p in main.partitions] == [(512, 512)] * 2
    assert not analysis.is_compatible


def test_the_delegates_options_decide(chain: Chain) -> None:
    model = chain("ADD", "Mystery", "RELU", "RELU")
    largest = analyze_model(model, max_delegated_partitions=1).subgraphs[0]
    assert [p.operators for p in largest.partitions] == [(2, 3)]
    assert analyze_model(model, {"last_delegate_node_index": 0}).subgraphs[0].operators[3].reason
    with pytest.raises(jd.OptionError, match="max_delegated_partitions"):
        analyze_model(model, max_delegated_partitons=1)
    with pytest.raises(jd.OptionError, match="set these on the delegate"):
        analyze_model(model, jd.JaxDelegate(), enable_quant=False)


def test_the_plan_is_the_interpreters(chain: Chain) -> None:
    model = chain("ADD", "Mystery", "RELU", "RELU")
    delegate = jd.JaxDelegate(min_gain=0)
    jd.Interpreter(model_content=model, experimental_delegates=[delegate])
    plan = delegate.report()
    operators = analyze_model(model).subgraphs[0].operators
    assert [(op.partition, op.reason) for op in operators] == [
        (row.partition, row.reason) for row in plan.nodes
    ]


def test_without_a_delegate_all_operators_stay_on_the_cpu(chain: Chain) -> None:
    analysis = analyze_with(chain("ADD"), None)
    assert analysis.subgraphs[0].operators[0].reason == "there is no delegate"
    assert analysis.subgraphs[0].partitions == ()


def test_planning_does_not_change_the_delegate(chain: Chain) -> None:
    delegate = jd.JaxDelegate(require_full_delegation=True)
    assert analyze_model(chain("Mystery"), delegate).subgraphs[0].left
    with pytest.raises(LookupError):
        delegate.report()


def quantized_model() -> bytes:
    builder = ModelBuilder()
    q = scaled(0.5, 3)
    x = builder.input((1, 8), np.int8, quantization=q)
    y = builder.tensor((1, 8), np.int8, quantization=q)
    builder.operator("ADD", [x, x], [y], version=2)
    builder.outputs(y)
    return builder.build()


def test_quantized_models_have_both_columns(chain: Chain) -> None:
    main = analyze_model(quantized_model()).subgraphs[0]
    assert main.other_mode is not None
    assert (main.other_mode.quant_mode, main.other_mode.delegated) == ("float_view", 1)
    refused = analyze_model(quantized_model(), enable_quant=False).subgraphs[0].operators[0]
    assert refused.reason == "it is quantized, and the option enable_quant is off"
    assert refused.other_reason == refused.reason
    assert analyze_model(chain("ADD")).subgraphs[0].other_mode is None
    assert main.tensors[0].quantization == "scale 0.5, zero point 3"


def loop(shape: tuple[int, ...]) -> bytes:
    """WHILE over a counter and a float32 tensor; the subgraphs declare no useful shapes."""
    builder = ModelBuilder()
    inputs = [builder.input((), np.int32, "i"), builder.input(shape, name="x")]
    outputs = [builder.tensor((), np.int32), builder.tensor(shape)]
    builder.operator("WHILE", inputs, outputs, WhileOptions(1, 2))
    builder.outputs(*outputs)
    cond, body = builder.subgraph("cond"), builder.subgraph("body")
    i, _ = cond.input((), np.int32), cond.input((1,))
    less = cond.tensor((), np.bool_)
    cond.operator("LESS", [i, cond.constant(np.int32(5))], [less])
    cond.outputs(less)
    i, x = body.input((), np.int32), body.input((1,))
    more, y = body.tensor((), np.int32), body.tensor((1,))
    body.operator("ADD", [i, body.constant(np.int32(1))], [more])
    body.operator("EXP", [x], [y])
    body.outputs(more, y)
    return builder.build()


def test_called_subgraphs_are_analyzed_with_their_callers_shapes() -> None:
    main, cond, body = analyze_model(loop((6, 7))).subgraphs
    assert body.tensors[1].shape == (6, 7)
    assert (cond.flops, body.flops) == (1, 1 + 42)
    assert main.operators[0].cost.flops == 1 + 1 + 42
    assert "per iteration" in main.operators[0].cost.note
    assert body.called_by == ((0, 0),)
    assert main.operators[0].subgraphs == (("cond_subgraph_index", 1), ("body_subgraph_index", 2))


def test_a_subgraph_that_cannot_be_planned_is_described_with_the_reason() -> None:
    builder = ModelBuilder()
    x, y = builder.input((3, 4)), builder.tensor((3, 4))
    builder.operator("ADD", [x, builder.constant(np.ones((5, 5), np.float32))], [y])
    builder.outputs(y)
    analysis = analyze_model(builder.build())
    (main,) = analysis.subgraphs
    assert main.problem is not None
    assert "Node number 0 (ADD) failed to prepare" in main.problem
    assert main.operators[0].reason == main.problem
    assert main.operators[0].cost.flops == 12
    assert analysis.findings[0].kind == "no_plan"


def test_folded_operators_cost_nothing() -> None:
    builder = ModelBuilder()
    x, half = builder.input((4,)), builder.constant(np.ones(4, np.float16))
    whole, y = builder.tensor((4,)), builder.tensor((4,))
    builder.operator("DEQUANTIZE", [half], [whole])
    builder.operator("ADD", [x, whole], [y])
    builder.outputs(y)
    folded, added = analyze_model(builder.build()).subgraphs[0].operators
    assert (folded.folded, folded.cost.flops, folded.cost.bytes) == (True, 0, 0)
    assert (added.folded, added.cost.flops) == (False, 4)


def test_callers_include_the_cost_of_what_they_call() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    builder.operator("CALL", [x], [y], CallOptions(1))
    builder.outputs(y)
    callee = builder.subgraph("callee")
    a, b = callee.input((4,)), callee.tensor((4,))
    callee.operator("Mystery", [a], [b])
    callee.outputs(b)
    main, called = analyze_model(builder.build()).subgraphs
    assert main.operators[0].cost.flops is None
    assert called.uncounted == (0,)
    assert main.uncounted == (0,)


def test_json_has_every_field(mobilenet: ModelAnalysis) -> None:
    record = json.loads(mobilenet.to_json())
    assert record == mobilenet.to_dict()
    assert record["schema_version"] == 1
    main = record["subgraphs"][0]
    assert main["flops"] == mobilenet.subgraphs[0].flops
    assert main["operators"][0]["options"]["padding"] == "SAME"
    assert main["operators"][0]["cost"]["bytes"] == mobilenet.subgraphs[0].operators[0].cost.bytes


def test_a_damaged_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(jd.ModelError, match="got b'abcd'"):
        analyze_model(b"\0\0\0\0abcd")
    with pytest.raises(jd.ModelError, match=r"nothere\.tflite"):
        analyze_model(tmp_path / "nothere.tflite")


# ---- the text


def test_the_text_ends_in_sizes_and_advice(mobilenet: ModelAnalysis) -> None:
    lines = str(mobilenet).splitlines()
    assert lines[0] == "=== <bytes> ==="
    assert "  Op#29 RESHAPE(T#84, T#87[-1, 1001]) -> [T#86]" in lines
    assert "  All 31 operations will run on XLA:CPU, in 1 partition." in lines
    assert any(line.startswith("Advice (") for line in lines)
    assert not any("COMPATIB" in line.upper() for line in lines)


def analyzer_lines(model: bytes, path: Path) -> list[str]:
    wrapper = pytest.importorskip("ai_edge_litert._pywrap_analyzer_wrapper")
    path.write_bytes(model)
    return str(wrapper.ModelAnalyzer(str(path), True, False)).splitlines()


def two_signatures() -> bytes:
    builder = ModelBuilder()
    for graph in (builder, builder.subgraph("other")):
        x, y = graph.input((2, 3), name="x"), graph.tensor((2, 3), name="y")
        graph.operator("ADD", [x, graph.constant(np.int32([1, 2, 3]), "c")], [y])
        graph.outputs(y)
    builder.signature("one", {"a": 0}, {"b": 1})
    builder.signature("two", {"a": 0}, {"b": 1}, 1)
    return builder.build()


@pytest.mark.litert
@pytest.mark.parametrize(
    "make",
    [lambda: mobilenet_v1(size=32, width=0.25), lambda: loop((2,)), two_signatures],
    ids=["mobilenet", "loop", "signatures"],
)
def test_lines_are_those_of_the_stock_analyzer(make: Callable[[], bytes], tmp_path: Path) -> None:
    model = make()
    ours = " ".join(str(analyze_model(model)).split())  # our long lines continue below
    stock = analyzer_lines(model, tmp_path / "model.tflite")
    kinds = (
        "Op#",
        "Subgraph#",
        "Signature#",
        "- ",
        "'",
        "Model size",
        "Non-data buffer size",
        "Total data",
    )
    lines = [" ".join(line.split()) for line in stock]
    expected = [line for line in lines if line.startswith(kinds)]
    assert len(expected) > 5
    assert [line for line in expected if line not in ours] == []
    tensors = [line for line in lines if line.startswith("T#")]
    assert [t for t in tensors if t in ours] == [
        t for t in tensors if "shape:n/a" not in t and "represents" not in t
    ]


def test_compatibility_lines_name_the_delegate(chain: Chain) -> None:
    bad = report(analyze_model(chain("ADD", "Mystery", "Mystery")), gpu_compatibility=True)
    warning = "GPU COMPATIBILITY WARNING: Subgraph#0 has GPU delegate compatibility issues at nodes"
    assert f"{warning} 1, 2 " in bad
    assert "looks compatible" not in bad
    good = report(analyze_model(chain("ADD")), gpu_compatibility=True)
    assert "Your model looks compatible with GPU delegate" in good
    assert "WARNING" not in good


def test_names_from_the_file_stay_on_their_line() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,), name="a\nGPU COMPATIBILITY WARNING\x1b[31m"), builder.tensor((4,))
    builder.operator("RELU", [x], [y])
    builder.outputs(y)
    text = str(analyze_model(builder.build()))
    assert "T#0(a\\nGPU COMPATIBILITY WARNING\\x1b[31m) shape:[4]" in text
    assert "\x1b" not in text
