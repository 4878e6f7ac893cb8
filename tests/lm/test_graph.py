"""Which signatures read prompts and generate tokens, and in which steps a prompt is read."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdelegate as jd
from jaxdelegate.errors import ModelError
from jaxdelegate.function.records import Signature, TensorInfo
from jaxdelegate.lm.graph import padding_of, prefill_plan, prompts_at_once, steps_at_once
from jaxdelegate.lm.signatures import language_graph
from jaxdelegate.op_lowering.matmul.stored_width_triton import MOST_ROWS
from tests.support.language_models import VOCABULARY, language_model


@pytest.fixture(scope="module")
def signatures() -> Mapping[str, Signature]:
    return jd.load(language_model(prefill=(4, 8))).signatures


def test_finds_the_steps(signatures: Mapping[str, Signature]) -> None:
    graph = language_graph(signatures, "x")
    assert graph.lengths == (4, 8)
    assert (graph.decode.key, graph.decode.length) == ("decode", 1)
    assert graph.decode.has_logits
    assert not graph.prefill[0].has_logits
    assert (graph.capacity, graph.vocabulary) == (128, VOCABULARY)
    assert list(graph.states) == ["kv_cache_k_0", "kv_cache_v_0"]


def changed(signature: Signature, **inputs: Any) -> Signature:
    """With other inputs; None: without it."""
    kept = {k: v for k, v in signature.inputs.items() if inputs.get(k, v) is not None}
    return dataclasses.replace(signature, inputs={**kept, **{k: v for k, v in inputs.items() if v}})


def test_chooses_the_length_of_caches(signatures: Mapping[str, Signature]) -> None:
    several = {
        f"{key}_cache_{n}": signature for key, signature in signatures.items() for n in (128, 256)
    }
    for wanted, chosen in ((100, 128), (128, 128), (200, 256), (1000, 256), (None, 256)):
        graph = language_graph(several, "x", wanted)
        assert graph.decode.key == f"decode_cache_{chosen}"
        assert {step.key for step in graph.prefill} == {
            f"prefill_{n}_cache_{chosen}" for n in (4, 8)
        }


def test_what_it_cannot_run_is_an_error(signatures: Mapping[str, Signature]) -> None:
    decode = signatures["decode"]
    image = TensorInfo("images", (1, 3), np.dtype(np.float32), None)
    mask = dataclasses.replace(decode.inputs["mask"], dtype=np.dtype(np.int8))
    for given_, said in (
        ({"prefill_8": signatures["prefill_8"]}, "expected a signature 'decode'"),
        ({"decode": changed(decode, tokens=None)}, "got no tokens"),
        ({"decode": changed(decode, images=image)}, "not supported: images"),
        ({"decode": changed(decode, mask=mask)}, "expected a mask of"),
    ):
        with pytest.raises(ModelError, match=said):
            language_graph(given_, "x")


def renamed(signature: Signature, **names: str) -> Signature:
    """With other names of inputs."""
    inputs = {names.get(name, name): info for name, info in signature.inputs.items()}
    return dataclasses.replace(signature, inputs=inputs)


def test_other_names_that_litert_lm_knows(signatures: Mapping[str, Signature]) -> None:
    for mask in ("attn_mask", "local_attn_mask"):
        names = {"tokens": "token_ids", "input_pos": "positions", "mask": mask}
        (step,) = language_graph(
            {
                "prefill_4": renamed(signatures["prefill_4"], **names),
                "decode": signatures["decode"],
            },
            "x",
        ).prefill
        assert (step.length, step.tokens, step.places.positions) == (4, "token_ids", "positions")
        assert mask in (step.places.mask, step.places.local_mask)


def test_inputs_that_only_npus_have(signatures: Mapping[str, Signature]) -> None:
    decode = renamed(signatures["decode"], input_pos="pos_emb_cos", mask="mask_global")
    said = "not supported: pos_emb_cos, mask_global: the model was exported for NPUs"
    with pytest.raises(ModelError, match=said):
        language_graph({"decode": decode}, "x")


def test_the_capacity_without_a_mask(signatures: Mapping[str, Signature]) -> None:
    graph = language_graph({"decode": changed(signatures["decode"], mask=None)}, "x")
    assert (graph.capacity, graph.decode.places.mask) == (128, None)


def test_states_without_an_entry_for_each_token(signatures: Mapping[str, Signature]) -> None:
    """LFM2's kv_cache_c_0 has a convolution's last inputs; it is longer than the caches here."""
    state = TensorInfo("kv_cache_c_0", (1, 512, 3), np.dtype(np.float32), None)
    decode = changed(signatures["decode"], mask=None, kv_cache_c_0=state)
    decode = dataclasses.replace(decode, outputs={**decode.outputs, "kv_cache_c_0": state})
    graph = language_graph({"decode": decode}, "x")
    assert graph.recurrent == ("kv_cache_c_0",)
    assert graph.capacity == 128


@pytest.mark.parametrize(
    ("count", "start", "plan"),
    [
        (0, 0, []),
        (16, 0, [16]),
        (17, 0, [16, 16]),
        (31, 0, [16, 16]),
        (33, 0, [64]),
        (100, 0, [64, 64]),
        (70, 0, [64, 16]),
        (5, 245, [1] * 5),  # 16 do not fit any more
        (20, 236, [16, 1, 1, 1, 1]),
    ],
)
def test_prefill_plans(count: int, start: int, plan: list[int]) -> None:
    assert prefill_plan(count, start, (16, 64), 256) == plan


@pytest.mark.parametrize(
    ("platform", "slots", "count", "plan"),
    [
        ("cpu", 1, 191, [128, 32, 32]),
        ("tpu", 1, 191, [128, 32, 32]),
        ("gpu", 1, 191, [512]),
        ("gpu", 1, 513, [512, 32]),
        ("gpu", 8, 191, [128, 128]),
        ("gpu", 4, 40, [128]),
        ("gpu", 64, 40, [128]),
        ("gpu", 64, 600, [512, 128]),
        ("gpu", 1, 40, [128]),
    ],
)
def test_a_gpu_has_fewer_steps(platform: str, slots: int, count: int, plan: list[int]) -> None:
    padding = padding_of(platform, slots)
    assert prefill_plan(count, 0, (32, 128, 512), 1024, padding) == plan


def test_how_many_prompts_a_program_reads() -> None:
    assert {prompts_at_once(p, 8, 128) for p in ("cpu", "tpu")} == {1}
    found = [prompts_at_once("gpu", slots, n) for slots, n in ((1, 32), (4, 32), (64, 128))]
    assert found == [1, 4, 4]
    assert [prompts_at_once("gpu", 64, n) for n in (1, 64, 256, 512, 4096)] == [8, 8, 2, 1, 1]
    assert all(n * prompts_at_once("gpu", 64, n) <= MOST_ROWS for n in (1, 32, 100, 128, 512))


def test_how_many_steps_a_program_runs() -> None:
    assert {steps_at_once(p, 1, 128) for p in ("cpu", "tpu")} == {1}
    assert [steps_at_once("gpu", 1, n) for n in (1, 128, 512, 4096)] == [16, 16, 4, 1]
    assert [steps_at_once("gpu", 4, n) for n in (32, 128)] == [16, 4]


@settings(deadline=None)
@given(
    st.integers(0, 300),
    st.integers(0, 300),
    st.sets(st.integers(2, 64), max_size=3),
    st.integers(1, 300),
    st.integers(0, 100),
)
def test_plans_read_everything_within_the_caches(
    count: int, start: int, lengths: set[int], capacity: int, padding: int
) -> None:
    start, count = min(start, capacity), min(count, max(capacity - start, 0))
    place = start
    for step in prefill_plan(count, start, lengths, capacity, padding):
        assert place + step <= capacity
        assert place < start + count
        place += step
    assert place >= start + count


def test_caches_may_be_shorter() -> None:
    for capacity, lengths in ((128, (128,)), (600, (256, 512, 600)), (1024, (256, 512, 1024))):
        model = jd.load(language_model(capacity=capacity))
        graph = language_graph(model.signatures, "x")
        assert graph.cache_lengths == lengths
        assert graph.shape("kv_cache_k_0", 256) == (1, 1, 256, 16)
        assert graph.shape("kv_cache_v_0", 256) == (1, 1, 16, 256)
