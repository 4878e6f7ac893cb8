"""Parts, batches and other input and output types as files, which stock LiteRT runs."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ai_edge_litert import interpreter as litert
from ai_edge_litert import schema_py_generated as schema
from jax.sharding import Mesh

import jaxdelegate as jd
from jaxdelegate.function.records import computed_names
from jaxdelegate.model.records import Model, Subgraph
from jaxdelegate.op_lowering.options import (
    CallOptions,
    FullyConnectedOptions,
    IfOptions,
    ReshapeOptions,
)
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs, run_once
from tests.function.graphs import (
    anchors,
    classifier,
    halves,
    integers,
    noisy,
    scaled,
    shared_weights,
    softmax_over_images,
)
from tests.function.test_function import counter, lstm
from tests.model.test_refusals import external_model
from tests.support import quantized
from tests.support.sparse import csr

SHARED = Path(__file__).parents[3] / "shared" / "models"
REFERENCE = litert.OpResolverType.BUILTIN_REF
IMAGE = np.linspace(-1, 1, 18, dtype=np.float32).reshape(1, 3, 3, 2)
Array = np.ndarray


def opened(content: bytes, *, preserve: bool = False) -> litert.Interpreter:
    return litert.Interpreter(
        model_content=content,
        experimental_op_resolver_type=REFERENCE,
        experimental_preserve_all_tensors=preserve,
    )


def stock(content: bytes, inputs: Sequence[Array]) -> list[Array]:
    return run_once(opened(content), inputs)


def file_of(model: Any, path: Path, params: Any = None, **how: Any) -> bytes:
    jd.save(model, path / "saved.tflite", params, **how)
    return (path / "saved.tflite").read_bytes()


def main_of(content: bytes) -> Subgraph:
    return jd.load(content).graph.subgraphs[0]


def same(got: Sequence[Array], want: Sequence[Array]) -> None:
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.tobytes() == b.tobytes()


# ---- parts


def check_halves(content: bytes, at: int, path: Path) -> list[Model]:
    """Check in LiteRT the parts before and after an operator: both are bit for bit the whole."""
    model = jd.load(content)
    main = model.graph.subgraphs[0]
    cut = between(main, at)
    names = {i: name for name, i in computed_names(main).items()}
    first, second = model.until([names[i] for i in cut]), model.from_([names[i] for i in cut])
    files = file_of(first, path), file_of(second, path)
    inputs = random_inputs(opened(content).get_input_details())
    interpreter = opened(content, preserve=True)
    run_once(interpreter, inputs)
    values = [np.array(interpreter.get_tensor(i)) for i in cut]
    used = [inputs[main.inputs.index(i)] for i in first.graph.subgraphs[0].inputs]
    same(stock(files[0], used), values)
    same(stock(files[1], values), stock(content, inputs))
    for part, file in zip((first, second), files, strict=True):
        assert str(jd.load(file).signatures) == str(part.signatures)
        check_is_minimal(file)
    return [jd.load(file).graph for file in files]


def between(main: Subgraph, at: int) -> list[int]:
    """The tensors that are known before an operator, and that it, later ones or outputs need."""
    known = [*main.inputs, *(i for o in main.operators[:at] for i in o.outputs)]
    read = {i for o in main.operators[at:] for i in o.inputs}.union(main.outputs)
    tensors = [main.tensors[i] for i in dict.fromkeys(known) if i in read]
    handles = ("RESOURCE", "VARIANT")
    return [t.index for t in tensors if not t.is_variable and t.type.name not in handles]


def check_is_minimal(content: bytes) -> None:
    """Check that the main subgraph needs its tensors, and the file its buffers and codes."""
    t, main = schema.ModelT.InitFromPackedBuf(content), main_of(content)
    used = {*main.inputs, *main.outputs}
    used.update(i for o in main.operators for i in (*o.inputs, *o.outputs, *o.intermediates))
    blocks = [tensor.quantization.blockwise for tensor in main.tensors if tensor.quantization]
    used.update(i for b in blocks if b is not None for i in (b.scales, b.zero_points))
    assert used - {-1} == set(range(len(main.tensors)))
    operators = [o for subgraph in t.subgraphs for o in subgraph.operators or []]
    assert {o.opcodeIndex for o in operators} == set(range(len(t.operatorCodes or [])))
    readers = [x for subgraph in t.subgraphs for x in subgraph.tensors or []]
    assert {0, *(r.buffer for r in [*readers, *(t.metadata or [])])} == set(range(len(t.buffers)))


def several(*, outside: bool = False) -> bytes:
    """Both sides of a cut read `a` and `bias`; two tensors have one name; one weight is sparse."""
    builder = ModelBuilder()
    x = builder.input((1, 4), name="x", shape_signature=(-1, 4))
    a, b, c, y = (builder.tensor((1, 4), name=name) for name in ("a", "same", "same", "y"))
    sparse = builder.constant(np.float32([1, 2, 3]), "sparse", shape=(4, 4), sparsity=csr(np.uint8))
    bias = builder.constant(np.float32([1, 2, 3, 4]), "bias")
    builder.operator("FULLY_CONNECTED", [x, sparse, bias], [a], FullyConnectedOptions(), version=8)
    builder.operator("ADD", [a, bias], [b])
    builder.operator("MUL", [a, b], [c])
    builder.operator("SUB", [c, bias], [y])
    builder.outputs(y, a)
    return builder.build(outside=outside)


def branches() -> bytes:
    """y = |x| or -x, then z = tanh(y) or exp(y): an IF in each half."""
    builder = ModelBuilder()
    positive, x = builder.input((), np.bool_, "positive"), builder.input((3,), name="x")
    for name in ("ABS", "NEG", "EXP", "TANH"):
        body = builder.subgraph(name)
        value, result = body.input((3,), name="x"), body.tensor((3,), name="y")
        body.operator(name, [value], [result])
        body.outputs(result)
    y, z = builder.tensor((3,), name="y"), builder.tensor((3,), name="z")
    builder.operator("IF", [positive, x], [y], IfOptions(1, 2))
    builder.operator("IF", [positive, y], [z], IfOptions(4, 3))
    builder.outputs(z)
    return builder.build()


@pytest.mark.parametrize(
    ("content", "at"),
    [(classifier(), 1), (several(), 2), (several(outside=True), 3), (branches(), 1)],
    ids=["classifier", "several", "outside", "branches"],
)
def test_both_parts_compute_what_the_whole_does(content: bytes, at: int, tmp_path: Path) -> None:
    first, second = check_halves(content, at, tmp_path)
    if len(first.subgraphs) > 1:
        assert [s.name for s in first.subgraphs] == ["main", "ABS", "NEG"]
        assert [s.name for s in second.subgraphs] == ["main", "EXP", "TANH"]
        assert second.subgraphs[0].operators[0].options == IfOptions(2, 1)


def test_a_trained_part_is_saved(tmp_path: Path) -> None:
    model = jd.load(classifier(signature=True))
    content = file_of(model.from_("features"), tmp_path, {"head": 2 * model.params["head"]})
    assert jd.load(content).params.keys() == {"head"}
    x = np.ones((1, 3, 3, 4), np.float32)
    (want,) = stock(file_of(model.from_("features"), tmp_path), [x])
    got = opened(content).get_signature_runner("classify")(features=x)
    np.testing.assert_allclose(got["logits"], 2 * want, rtol=1e-6)
    again = jd.load(content).until("flat")  # a part of a part
    assert [o.name for o in main_of(file_of(again, tmp_path)).operators] == ["RESHAPE"]


def test_ends_of_any_kind(tmp_path: Path) -> None:
    model = jd.load(classifier())
    content = file_of(model.until("image"), tmp_path)  # without operators
    same(stock(content, [IMAGE]), [IMAGE])
    assert list(jd.load(content).signatures) == ["serving_default"]
    content = file_of(model.until(["scores", "scores", "image"]), tmp_path)
    (scores,) = stock(classifier(), [IMAGE])
    same(stock(content, [IMAGE]), [scores, scores, IMAGE])
    content = file_of(jd.load(halves()).from_(["a", "x"]), tmp_path)
    given = np.float32([100, 200]), np.float32([1, 2, 3, 4])
    same(stock(content, given), [np.float32([103, 204])])
    assert {"a", "a_unread"} < {t.name for t in main_of(content).tensors}


def test_blocks_keep_their_scales(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x, a, y = builder.input((1, 4), name="x"), builder.tensor((1, 4)), builder.tensor((1, 4))
    blocks = Blockwise(-1, -1, 2, scale=np.full((4, 2), 0.5, np.float16))
    q = Quantization(np.float32([]), np.int64([]), blockwise=blocks)
    w = builder.constant(np.arange(16, dtype=np.int8).reshape(4, 4), "w", quantization=q)
    builder.operator("RELU", [x], [a])
    builder.operator("FULLY_CONNECTED", [a, w, None], [y], FullyConnectedOptions(), version=13)
    builder.outputs(y)
    model = jd.load(builder.build())
    content = file_of(model.from_(f"t{a}"), tmp_path)
    check_is_minimal(content)
    np.testing.assert_array_equal(jd.load(content).params["w"], model.params["w"])
    assert [t.name for t in main_of(file_of(model.until(f"t{a}"), tmp_path)).tensors] == [
        "x",
        f"t{a}",
    ]


def test_an_input_has_the_shape_that_operators_compute(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x, a, y = builder.input((2, 3), name="x"), builder.tensor((), name="a"), builder.tensor(())
    builder.operator("RELU", [x], [a])
    builder.operator("EXP", [a], [y])
    builder.outputs(y)
    content = file_of(jd.load(builder.build()).from_("a"), tmp_path)
    assert opened(content).get_input_details()[0]["shape"].tolist() == [2, 3]


def test_states_are_those_of_the_part(tmp_path: Path) -> None:
    model = jd.load(counter())
    value = jd.load(file_of(model.until("value"), tmp_path)).graph
    assert [s.name for s in value.subgraphs] == ["main", "initialize"]
    interpreter = opened(bytes(value.content))
    for step in range(2):  # what is read before it is assigned
        same(run_once(interpreter, [np.float32([1, 2])]), [np.float32([10 + step, 20 + 2 * step])])
    rest = jd.load(file_of(model.from_(["value", "x"]), tmp_path)).graph
    assert [[o.name for o in s.operators] for s in rest.subgraphs] == [["ADD"]]
    part = jd.load(file_of(jd.load(lstm()).until("y"), tmp_path))
    assert part.initial_state().keys() == {"h", "c"}


def test_metadata_of_the_whole_is_left_out(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x, a, y = builder.input((2,), name="x"), builder.tensor((2,), name="a"), builder.tensor((2,))
    builder.operator("RELU", [x], [a])
    builder.operator("ADD", [a, builder.constant(np.float32([1, 2]))], [y])
    builder.outputs(y)
    builder.metadata("TFLITE_METADATA", b"describes all inputs")
    builder.metadata("min_runtime_version", b"1.14.0")
    path = tmp_path / "m.tflite"
    path.write_bytes(builder.build())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.txt", "cat\ndog")
    content = file_of(jd.load(path).until("a"), tmp_path)
    assert dict(jd.load(content).graph.metadata) == {"min_runtime_version": b"1.14.0"}
    assert not zipfile.is_zipfile(tmp_path / "saved.tflite")
    check_is_minimal(content)


# ---- batches


def reshaped() -> bytes:
    """[1, 2, 6] -> RESHAPE [3, 4] by options -> RESHAPE [1, -1] -> EXP."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 6), name="x")
    rows, flat, y = (builder.tensor(s) for s in ((3, 4), (1, 12), (1, 12)))
    builder.operator("RESHAPE", [x], [rows], ReshapeOptions((3, 4)))
    sizes = builder.constant(np.array([1, -1], np.int32))
    builder.operator("RESHAPE", [rows, sizes], [flat], ReshapeOptions((1, -1)))
    builder.operator("EXP", [flat], [y])
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("size", [3, "b"])
@pytest.mark.parametrize(
    "content",
    [classifier(signature=True), anchors(), reshaped(), shared_weights()],
    ids=["classifier", "anchors", "options", "signatures"],
)
def test_a_batch_is_one_run_for_each_image(content: bytes, size: Any, tmp_path: Path) -> None:
    batch = file_of(jd.load(content).batched(size), tmp_path)
    for subgraph in jd.load(batch).graph.subgraphs:
        for t in (subgraph.tensors[i] for i in (*subgraph.inputs, *subgraph.outputs)):
            assert (t.shape_signature or t.shape)[0] == (3 if size == 3 else -1)
    shape = main_of(content).tensors[main_of(content).inputs[0]].shape
    images = np.random.default_rng(0).normal(size=(3, *shape[1:])).astype(np.float32)
    for key in jd.load(content).signatures or [None]:
        single = [of_signature(content, key, image[None]) for image in images]
        same([of_signature(batch, key, images)], [np.concatenate(single)])


def of_signature(content: bytes, key: str | None, x: Array) -> Array:
    """The output for the only input; None: of the main subgraph."""
    if key is None:
        return stock(content, [x])[0]
    (name,) = jd.load(content).signatures[key].inputs
    (y,) = opened(content).get_signature_runner(key)(**{name: x}).values()
    return np.asarray(y)


def test_a_part_for_a_batch_with_other_types(tmp_path: Path) -> None:
    model = jd.load(integers()).until("y").batched(2)
    content = file_of(model, tmp_path, io="float32")
    x = np.float32([[1, 0, -1, 0.5], [0, 2, 0, -0.25]])
    one = file_of(integers(), tmp_path, io="float32")
    same(stock(content, [x]), [np.concatenate([stock(one, [row[None]])[0] for row in x])])


def free_sizes() -> bytes:
    """[1, n, 6] -> RESHAPE [1, -1, 2]."""
    builder = ModelBuilder()
    x = builder.input((1, 1, 6), name="x", shape_signature=(1, -1, 6))
    y = builder.tensor((1, 3, 2), shape_signature=(1, -1, 2))
    sizes = builder.constant(np.array([1, -1, 2], np.int32))
    builder.operator("RESHAPE", [x, sizes], [y], ReshapeOptions((1, -1, 2)))
    builder.outputs(y)
    return builder.build()


def test_other_free_sizes_stay_free(tmp_path: Path) -> None:
    model = jd.load(free_sizes())
    x = np.arange(2 * 5 * 6, dtype=np.float32).reshape(2, 5, 6)
    same(stock(file_of(model.batched(2), tmp_path), [x]), [x.reshape(2, 15, 2)])
    with pytest.raises(jd.ModelError, match="would have two free sizes: give batched"):
        file_of(model.batched("b"), tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (softmax_over_images(), "node 0 .TRANSPOSE. may mix the images"),
        (scaled(), "input 1 'factor' does not have the size 1"),
        (noisy(), "'RANDOM_UNIFORM.0/state' is state"),
        (lstm(), "its state .h. is .1, 3."),
        (counter(), "does not have the size 1"),
    ],
    ids=["mixing", "scaled", "noisy", "lstm", "counter"],
)
def test_a_batch_that_a_file_cannot_hold(content: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(jd.ModelError, match=rf"batched\(4\): .*{why}.*model.export\(batch=..."):
        jd.load(content).batched(4).save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


# ---- types of inputs and outputs


def quantize(x: Array, q: Quantization, dtype: Any) -> Array:
    steps = x / q.scale
    rounded = np.trunc(steps + np.copysign(np.float32(0.5), steps)) + q.zero_point
    return np.clip(rounded, *quantized.ends(dtype)).astype(dtype)


def ends_of(content: bytes) -> list[tuple[str, str, int | None]]:
    """Name, dtype and zero point of inputs and outputs."""
    main = main_of(content)
    tensors = (main.tensors[i] for i in (*main.inputs, *main.outputs))
    return [
        (t.name, t.dtype.name, int(t.quantization.zero_point[0]) if t.quantization else None)
        for t in tensors
    ]


def test_floats_in_place_of_integers(tmp_path: Path) -> None:
    content = file_of(integers(), tmp_path, io="float32")
    assert ends_of(content) == [("x", "float32", None), ("y", "float32", None)]
    q, out = (t.quantization for t in (main_of(integers()).tensors[i] for i in (0, 3)))
    x = np.float32([[1, -2, 0.123, 100]])
    (want,) = stock(integers(), [quantize(x, q, np.int8)])
    same(stock(content, [x]), [(want - np.float32(out.zero_point)) * out.scale])
    assert file_of(integers(), tmp_path, io="float") == content  # the word of `function`
    assert file_of(content, tmp_path, io="float32") == content
    back = file_of(content, tmp_path, io="int8")
    assert ends_of(back) == ends_of(integers())
    check_is_minimal(back)
    for x in ([[1, 2, 3, 4]], [[-128, 127, 0, 5]]):
        same(stock(back, [np.int8(x)]), stock(integers(), [np.int8(x)]))


def test_unsigned_integers_are_the_same_values(tmp_path: Path) -> None:
    x = np.array([[10, -20, 127, -128]], np.int8)
    (want,) = stock(integers(), [x])
    unsigned = (x.astype(int) + 128).astype(np.uint8)
    content = file_of(integers(), tmp_path, io="uint8")
    assert ends_of(content) == [("x", "uint8", 125), ("y", "uint8", 133)]
    same(stock(content, [unsigned]), [(want.astype(int) + 128).astype(np.uint8)])
    assert ends_of(file_of(content, tmp_path, io="int8")) == ends_of(integers())
    mixed = file_of(content, tmp_path, io=("uint8", "float32"))
    assert ends_of(mixed) == [("x", "uint8", 125), ("y", "float32", None)]
    half = file_of(content, tmp_path, io=("int8", "file"))
    assert ends_of(half) == [("x", "int8", -3), ("y", "uint8", 133)]
    same(stock(half, [x]), stock(content, [unsigned]))


def ids_and_floats() -> bytes:
    """int16: x float -> QUANTIZE -> TANH -> DEQUANTIZE -> y, which ADD reads, too; ids -> z."""
    builder = ModelBuilder()
    q = quantized.scaled(2**-15)
    x, ids = builder.input((2,), name="x"), builder.input((2,), np.int32, "ids")
    a, b = (builder.tensor((2,), np.int16, name, quantization=q) for name in "ab")
    y, z, w = (
        builder.tensor((2,), name="y"),
        builder.tensor((2,), np.int32, "z"),
        builder.tensor((2,)),
    )
    builder.operator("QUANTIZE", [x], [a], version=2)
    builder.operator("TANH", [a], [b], version=3)
    builder.operator("DEQUANTIZE", [b], [y], version=3)
    builder.operator("ADD", [y, y], [w])
    builder.operator("ADD", [ids, ids], [z])
    builder.outputs(y, z, w)
    builder.signature("run", {"in": x, "ids": ids}, {"out": y, "sums": z, "twice": w})
    return builder.build()


def test_only_quantized_ends_change(tmp_path: Path) -> None:
    content = file_of(ids_and_floats(), tmp_path, io="int16")
    assert [end[:2] for end in ends_of(content)] == [
        *(("x", "int16"), ("ids", "int32")),
        *(("y", "int16"), ("z", "int32"), ("t6", "float32")),
    ]
    signature = jd.load(content).signatures["run"]
    assert [t.dtype.name for t in signature.inputs.values()] == ["int16", "int32"]
    x, ids = np.float32([0.25, -0.5]), np.int32([1, 2])
    got = stock(content, [(x * 2**15).astype(np.int16), ids])
    y, z, w = stock(ids_and_floats(), [x, ids])
    same([got[0] * np.float32(2**-15), *got[1:]], [y, z, w])
    with pytest.raises(
        jd.TensorError, match=r"io='uint8': .* input 'x' in int16.*float32 or int16"
    ):
        file_of(ids_and_floats(), tmp_path, io="uint8")


def called() -> bytes:
    """Two signatures; the main subgraph calls that of the other one."""
    builder, q = ModelBuilder(), quantized.scaled(0.1)
    other = builder.subgraph("other")
    a = other.input((2,), np.int8, "a", quantization=q)
    b = other.tensor((2,), np.int8, "b", quantization=q)
    other.operator("RELU", [a], [b], version=2)
    other.outputs(b)
    x = builder.input((2,), np.int8, "x", quantization=q)
    y = builder.tensor((2,), np.int8, "y", quantization=q)
    builder.operator("CALL", [x], [y], CallOptions(1))
    builder.outputs(y)
    builder.signature("other", {"a": a}, {"b": b}, subgraph=1)
    return builder.build()


@pytest.mark.parametrize(
    ("content", "io", "why"),
    [
        (classifier(), "int8", "its inputs and outputs are not quantized: quantize activations"),
        (called(), "float32", "an operator also calls subgraph 1"),
    ],
    ids=["floats", "called"],
)
def test_types_that_a_model_cannot_have(content: bytes, io: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(jd.ModelError, match=why):
        file_of(content, tmp_path, io=io)


# ---- what no file can be


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "m"
    with pytest.raises(jd.OptionError, match=r"io: expected one of 'file', 'float', .* got 'int4'"):
        jd.save(integers(), target, io="int4")  # type: ignore[arg-type]
    with pytest.raises(jd.ModelError, match=r"tensor 1 't1' is a resource, which LiteRT cannot"):
        jd.load(counter()).until("t1").save(target)
    (tmp_path / "weights.bin").write_bytes(bytes(24))
    (tmp_path / "external.tflite").write_bytes(external_model())
    external = jd.load(tmp_path / "external.tflite")
    with pytest.raises(jd.ModelError, match="saving a part: its weights are in files next to it"):
        external.until(next(iter(external.tensors))).save(target)
    model = jd.load(classifier())
    sharded = model.sharded(Mesh(np.array(jax.devices()[:1]), ("data",)))
    with pytest.raises(
        jd.OptionError, match="a sharded model has no file: save the model that was"
    ):
        jd.save(sharded, target)
    assert not target.exists()


# ---- real networks

NETWORKS = (
    "networks/face_blendshapes.tflite",
    "networks/face_detection_full_range_sparse.tflite",
    "networks/keras_lstm_mnist_ptq.tflite",
    "networks/mobilenet_v1_0.25_224_quant.tflite",
    "networks/regex_one_embedding_with_metadata.tflite",
    "networks/soundstream_encoder.tflite",
    "networks/style_transfer_quantized_dynamic.tflite",
    "networks/v2__okay_nabu.tflite",
    "networks/vww_96_float.tflite",
    "quantizer/toy_model_with_kv_cache_multi_signature.tflite",
    "zoo/bilstm_tagger.tflite",
    "zoo/deeplabv3_mnv2_aspp_257_argmax_int8.tflite",
    "zoo/dynamic_shape_fcn.tflite",
    "zoo/gru_while.tflite",
    "zoo/if_while.tflite",
    "zoo/lstm_text_classifier_dynrange.tflite",
    "zoo/mobilenet_v2_1.0_224_int16x8.tflite",
    "zoo/mobilenet_v2_1.0_224_int8.tflite",
    "zoo/multi_signature_encdec.tflite",
    "zoo/ssd_mnv2_300_postprocess.tflite",
)


def network(file: str) -> bytes:
    if not (SHARED / file).exists():
        pytest.skip(f"the real model {file} is not here")
    return (SHARED / file).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "quarter"),
    [
        pytest.param(file, 1 + i % 3, marks=[pytest.mark.exhaustive] * (i % 2))
        for i, file in enumerate(NETWORKS)
    ],
)
def test_parts_of_a_real_network(file: str, quarter: int, tmp_path: Path) -> None:
    content = network(file)
    count = len(main_of(content).operators)
    check_halves(content, max(1, quarter * count // 4), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        "networks/face_detection_front.tflite",
        "networks/ssd_slim_120x160x1_v1_int8.tflite",
        "zoo/mobilenet_v2_1.0_224_dynrange.tflite",
    ],
)
def test_a_batch_of_a_real_network(file: str, tmp_path: Path) -> None:
    content = network(file)
    (given,) = opened(content).get_input_details()
    images = [random_inputs([given], seed)[0] for seed in range(3)]
    single = [stock(content, [image]) for image in images]
    batch = file_of(jd.load(content).batched(3), tmp_path)
    same(
        stock(batch, [np.concatenate(images)]), list(map(np.concatenate, zip(*single, strict=True)))
    )


@pytest.mark.slow
@pytest.mark.parametrize("io", ["float32", "uint8"])
@pytest.mark.parametrize(
    "file",
    [
        "networks/face_landmark_192_full_integer_quant.tflite",
        "networks/mobilenet_v1_0.25_224_quant.tflite",
        "networks/vww_96_int8.tflite",
    ],
)
def test_types_of_a_real_network(file: str, io: Any, tmp_path: Path) -> None:
    integers_of_file = file_of(network(file), tmp_path, io="int8")
    content = file_of(integers_of_file, tmp_path, io=io)
    inner, outer = main_of(integers_of_file), main_of(content)
    (x,) = random_inputs(opened(content).get_input_details())
    q = inner.tensors[inner.inputs[0]].quantization
    is_float = io == "float32"
    given = quantize(x, q, np.int8) if is_float else (x.astype(int) - 128).astype(np.int8)
    got, want = stock(content, [x]), stock(integers_of_file, [given])
    for i, y, integer in zip(inner.outputs, got, want, strict=True):
        q = inner.tensors[i].quantization
        floats = (integer - np.float32(q.zero_point)) * q.scale
        same([y], [floats if is_float else (integer.astype(int) + 128).astype(np.uint8)])
    assert [outer.tensors[i].name for i in outer.outputs] == [
        inner.tensors[i].name for i in inner.outputs
    ]
