"""Figures of programs for absent devices are compared, and changed lowerings are detected."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gates() -> Any:
    return pytest.importorskip("device_gates")


@pytest.fixture(scope="module")
def digests() -> Any:
    """The digests of the lowerings as they are."""
    return pytest.importorskip("device_gates").digests()


GPU = {
    "graph": "a.tflite", "batch": 1, "compute_dtype": "float16", "quant_mode": "float_view",
    "compiled_for": "H100", "kernels": 60, "launches": 60, "captured": 60, "graphs": 1,
    "wide_operations": 0, "host_calls": [], "moved_mb": 30.0, "least_mb": 25.0,
}  # fmt: skip
TPU = {"fusions": 40, "products": 28, "host_calls": [], "moved_mb": 90.0}


@pytest.mark.parametrize(
    ("before", "change", "said"),
    [
        (GPU, {}, []),
        (GPU, {"kernels": 63, "moved_mb": 31.4, "captured": 58}, []),  # 5% or less
        (GPU, {"kernels": 30, "moved_mb": 26.0}, []),
        (GPU, {"kernels": 64}, ["kernels: 60 before, now 64"]),
        (GPU, {"captured": 56}, ["captured_share: 1 before, now 0.933333"]),
        (GPU, {"launches": 120, "captured": 120}, []),
        (GPU, {"graphs": 2}, ["graphs: 1 before, now 2"]),
        (GPU, {"moved_mb": 31.6}, ["moved_over_least: 1.2 before, now 1.264"]),
        (GPU, {"moved_mb": 60.0, "least_mb": 50.0}, []),
        (GPU, {"wide_operations": 1}, ["wide_operations: 0 before, now 1"]),
        (GPU, {"host_calls": ["python"]}, ["host_calls: 0 before, now 1"]),
        (TPU, {"products": 26}, ["products: 28 before, now 26"]),
        (TPU, {"products": 40}, []),
        (TPU, {"fusions": 43}, ["fusions: 40 before, now 43"]),
        (TPU, {"moved_mb": None}, ["moved_over_least: 90 before, now not known"]),
    ],
)
def test_what_is_worse(
    gates: Any, before: dict[str, Any], change: dict[str, Any], said: Sequence[str]
) -> None:
    assert gates.worse(before, {**before, **change}) == said


def test_what_compiles_no_more_is_worse(gates: Any) -> None:
    absent = {"absent": "no such shape"}
    assert gates.worse(GPU, absent) == ["does not compile: no such shape"]
    assert gates.worse(absent, absent) == gates.worse(absent, GPU) == []


def test_cases_are_compared_with_themselves(gates: Any) -> None:
    large = {**GPU, "batch": 128, "kernels": 80}
    before = [GPU, large]
    assert gates.failures(before, [large, GPU]) == []
    (line,) = gates.failures(before, [GPU, {**large, "kernels": 90}])
    assert line == "a.tflite 128 float16 float_view H100: kernels: 80 before, now 90"
    assert gates.failures(before, [{**large, "graph": "b.tflite", "kernels": 90}]) == []


@pytest.mark.parametrize("bench", ["compile_for_gpu", "compile_for_tpu"])
def test_committed_lines_are_of_different_cases(gates: Any, bench: str) -> None:
    """Some need no file, so that the session can compile them anywhere with the same jax."""
    lines = gates.records(gates.results(bench))
    assert len({gates.case_of(line) for line in lines}) == len(lines)
    assert {"mobilenet_v1", "classification_int8.tflite"} <= {line["graph"] for line in lines}
    (jax_version,) = {line["machine"]["versions"]["jax"] for line in lines}
    assert f'_GATES_JAX = "{jax_version}"' in (ROOT / "noxfile.py").read_text(encoding="utf-8")


def short_lines(gates: Any, graph: str) -> list[dict[str, Any]]:
    """The committed lines of a GPU at batch 1 in float16."""
    lines = gates.records(gates.results("compile_for_gpu"))
    return [line for line in lines if gates.case_of(line)[:3] == (graph, 1, "float16")]


@pytest.mark.parametrize("graph", ["mobilenet_v2_1.0_224.tflite", "deeplabv3_mnv2_aspp_257.tflite"])
def test_small_networks_are_one_cuda_graph_or_two(gates: Any, graph: str) -> None:
    lines = short_lines(gates, graph)
    assert lines
    assert all(line["captured"] >= 0.9 * line["launches"] for line in lines)
    assert all(line["graphs"] <= 2 for line in lines)


def test_bert_moves_little_more_than_it_has_to(gates: Any) -> None:
    lines = short_lines(gates, "bert_small_L4_H512_S128.tflite")
    assert lines
    assert all(line["moved_mb"] <= 1.3 * line["least_mb"] for line in lines)


@pytest.mark.parametrize(
    ("graph", "dtype", "mode", "most"),
    [  # MB: at most 1.25 times what ideal fusion moves, and for int8 1.5 times
        ("mobilenet_v2_1.0_224.tflite", "float16", "float_view", 1.25 * 3560),
        ("deeplabv3_mnv2_aspp_257.tflite", "float16", "float_view", 1.25 * 8065),
        ("posenet_mnv1_050_353x257.tflite", "float16", "float_view", 1.25 * 3018),
        ("mobilenet_v2_1.0_224_int8.tflite", "float32", "integer", 2670),
        # The traffic of the float network, and a tenth.
        ("mobilenet_v2_1.0_224_int8.tflite", "float16", "float_view", 1.1 * 3846),
    ],
)
def test_batches_move_little_more_than_they_have_to(
    gates: Any, graph: str, dtype: str, mode: str, most: float
) -> None:
    lines = gates.records(gates.results("compile_for_gpu"))
    moved = [r["moved_mb"] for r in lines if gates.case_of(r)[:4] == (graph, 128, dtype, mode)]
    assert moved
    assert max(moved) <= most


@pytest.mark.parametrize("graph", ["decoder_layers", "int4_decoder_layers"])
def test_a_decoders_layer_has_four_kernels_of_products(gates: Any, graph: str) -> None:
    """Two layers, and one or two kernels of each TANH; at most 1.15 times the ideal traffic.

    XLA normalizes many rows, by two kernels for each of four norms, and casts what it reads.
    """
    lines = [r for r in gates.records(gates.results("compile_for_gpu")) if r["graph"] == graph]
    assert {line["batch"] for line in lines} == {1, 16, 17, 64, 128, 512}
    for line in lines:
        assert line["kinds"]["own kernel"] == 8
        assert "matrix product" not in line["kinds"]
        assert line["kernels"] <= (12 if line["batch"] <= 64 else 24)
        assert line["captured"] == line["launches"]
        assert line["moved_mb"] <= 1.15 * line["least_mb"]


def test_int8_networks_compute_in_32_bits(gates: Any) -> None:
    lines = gates.records(gates.results("compile_for_gpu"))
    case = "mobilenet_v2_1.0_224_int8.tflite", "integer"
    wide = [r["wide_operations"] for r in lines if (r["graph"], r["quant_mode"]) == case]
    assert wide
    assert not any(wide)


def test_a_tpu_convolves_on_its_matrix_unit(gates: Any) -> None:
    """Every float network, and quantized ones as floats."""
    lines = gates.records(gates.results("compile_for_tpu"))
    short = [line for line in lines if line["quant_mode"] == "float_view"]
    assert all(line["products"] >= line["convolutions"] for line in short)
    assert any("int8" in line["graph"] for line in short)


def test_lowerings_are_those_of_the_committed_lines(gates: Any, digests: Any) -> None:
    kept = json.loads(gates.DIGESTS.read_text(encoding="utf-8"))
    if jax.__version__ not in kept:
        pytest.skip(f"no digests for jax {jax.__version__}: python bench/device_gates.py --digests")
    lines = kept[jax.__version__].items()
    changed = [case for case, digest in lines if digests.get(case) != digest]
    assert not changed, (
        f"operators are lowered in another way for {', '.join(changed)}. See by `nox -s "
        "device_gates -- --models=FOLDER --update` whether programs are worse; then write "
        "`python bench/device_gates.py --digests`"
    )


@pytest.mark.slow
def test_a_digest_sees_another_lowering(
    gates: Any, digests: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    precise = gates.precision_policy.device_policy("float32")
    monkeypatch.setattr(gates.precision_policy, "policy_here", lambda *_: precise)
    changed = {case for case, digest in gates.digests().items() if digest != digests[case]}
    assert changed == {case for case in digests if "float16" in case}  # bfloat16, too
