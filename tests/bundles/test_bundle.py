"""Bundles: sections, models, tokenizers, metadata; what is absent is refused by name."""

import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from litert_lm_builder import LitertLmFileBuilder, TfLiteModelType
from litert_lm_builder.runtime.proto import (
    embedding_metadata_pb2,
    executor_metadata_pb2,
    llm_metadata_pb2,
)

import jaxdelegate as jd
from jaxdelegate import protos
from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.bundles.metadata import Affixes, SamplerParameters, Token
from jaxdelegate.errors import ModelError, OptionError
from tests.support.bundles import (
    TEMPLATE,
    TYPES,
    compressed,
    gestures,
    hugging_face_json,
    litertlm,
    llm_metadata,
    llm_task,
    model_part,
    multiplier,
    parts,
    sentencepiece_model,
    zipped,
)

MODELS = Path(__file__).parents[3] / "shared/models/lm"


def test_sections_are_those_of_the_header() -> None:
    items = {"backend_constraint": "cpu", "count": 3, "scale": 0.5, "flag": True}
    sections = [*parts(), model_part("tf_lite_vision_encoder", multiplier(3.0), **items)]
    bundle = jd.open_bundle(litertlm(sections, properties={"Authors": "tests", "size": 7}))
    assert bundle.format == "LiteRT-LM 1.7.0"
    assert dict(bundle.properties) == {"Authors": "tests", "size": 7}
    assert [(s.name, s.type, s.model_type) for s in bundle.sections] == [
        ("LlmMetadataProto", "LlmMetadataProto", ""),
        ("HF_Tokenizer_Zlib", "HF_Tokenizer_Zlib", ""),
        ("prefill_decode", "TFLiteModel", "prefill_decode"),
        ("vision_encoder", "TFLiteModel", "vision_encoder"),
    ]
    assert dict(bundle.sections[3].items) == items | {"model_type": "tf_lite_vision_encoder"}
    for section, (*_, content) in zip(bundle.sections, sections, strict=True):
        assert (section.size, bundle.data(section.name)) == (len(content), content)
    assert list(bundle.models) == ["prefill_decode", "vision_encoder"]
    assert bundle.models["vision_encoder"].content == multiplier(3.0)
    assert repr(bundle) == "<LiteRT-LM 1.7.0 bundle '<bytes>' of prefill_decode, vision_encoder>"


def test_a_bundle_of_litert_lm_s_builder(tmp_path: Path) -> None:
    files = {"m.tflite": multiplier(), "t.json": hugging_face_json(), "l.pb": llm_metadata()}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    builder = LitertLmFileBuilder()
    builder.add_tflite_model(os.fspath(tmp_path / "m.tflite"), TfLiteModelType.PREFILL_DECODE)
    builder.add_hf_tokenizer(os.fspath(tmp_path / "t.json"))
    builder.add_llm_metadata(os.fspath(tmp_path / "l.pb"))
    with (tmp_path / "b.litertlm").open("wb") as file:
        builder.build(file)
    bundle = jd.open_bundle(tmp_path / "b.litertlm")
    assert bundle.models["prefill_decode"].content == multiplier()
    assert bundle.tokenizer().encode("the cat") == [2, 3]
    assert bundle.template == TEMPLATE


def test_sections_of_archives_are_their_members() -> None:
    assert [(s.name, s.type) for s in jd.open_bundle(gestures()).sections] == [
        ("hands.task", "GenericBinaryData"),
        ("hands.task!hand_detector.tflite", "TFLiteModel"),
        ("hands.task!labels.txt", "GenericBinaryData"),
        ("gestures.tflite", "TFLiteModel"),
    ]
    bundle = jd.open_bundle(gestures())
    assert bundle.data("hands.task!labels.txt") == b"left\nright\n"
    assert jd.open_bundle(zipped({"a/": b"", "a/b": b"b" * 99}, compress=["a/b"])).data("a/b") == (
        b"b" * 99
    )


def test_metadata() -> None:
    m = jd.open_bundle(litertlm(parts())).metadata
    assert m.start_token == Token(None, (1,))
    assert m.stop_tokens == (Token("<eos>"), Token(None, (3, 4)))
    assert m.sampler == SamplerParameters("TOP_P", 5, 0.5, 0.25, None)
    assert (m.max_num_tokens, m.model_type, m.template) == (64, "gemma3", TEMPLATE)
    assert m.pad_token is m.supports_thinking is m.min_runtime_version is None
    assert m.proto.max_num_tokens == 64


def test_metadata_of_mediapipe_s_language_models() -> None:
    m = protos.message("odml.infra.proto.LlmParameters")
    m.start_token = "<bos>"
    m.stop_tokens.extend(["<eos>", "<end_of_turn>"])
    m.prompt_template.prompt_prefix, m.prompt_template.prompt_suffix = "user: ", "\nmodel: "
    bundle = jd.open_bundle(llm_task(METADATA=m.SerializeToString()))
    assert bundle.metadata.start_token == Token("<bos>")
    assert bundle.metadata.stop_tokens == (Token("<eos>"), Token("<end_of_turn>"))
    assert bundle.metadata.affixes == {"user": Affixes("user: ", "\nmodel: ")}
    assert bundle.template is None


@pytest.mark.parametrize("start", ["<bos>", "[BOS]", "\n\x03abc", 1])
def test_mediapipe_s_parameters_without_stop_tokens(start: str | int) -> None:
    m = protos.message("odml.infra.proto.LlmParameters")
    m.vocab_size = 7
    setattr(m, "start_token" if isinstance(start, str) else "start_token_id", start)
    metadata = jd.open_bundle(llm_task(METADATA=m.SerializeToString())).metadata
    expected = Token(start) if isinstance(start, str) else Token(None, (start,))
    assert metadata.start_token == expected


@pytest.mark.parametrize("model_type", ["gemma3", "qwen3", "generic_model", "gemma4"])
@pytest.mark.parametrize("newer", [b"", b"\xba\x3e\x03new"])  # a field that we do not know
def test_metadata_without_a_start_token(model_type: str, newer: bytes) -> None:
    """litert-torch writes them for tokenizers without one."""
    m = llm_metadata_pb2.LlmMetadata()
    m.ParseFromString(llm_metadata())
    m.ClearField("start_token")
    m.llm_model_type.Clear()
    getattr(m.llm_model_type, model_type).SetInParent()
    data = m.SerializeToString() + newer
    found = jd.open_bundle(litertlm([(TYPES.LlmMetadataProto, {}, data)])).metadata
    assert found.start_token is None
    assert found.stop_tokens == (Token("<eos>"), Token(None, (3, 4)))
    assert (found.max_num_tokens, found.model_type) == (64, model_type)
    assert (found.template, found.sampler and found.sampler.k) == (TEMPLATE, 5)


def test_executor_metadata() -> None:
    m = executor_metadata_pb2.ExecutorMetadata()
    m.llm_executor_metadata.max_history_size = 7
    section = (TYPES.ExecutorMetadataProto, {}, m.SerializeToString())
    bundle = jd.open_bundle(litertlm([*parts(), section]))
    assert bundle.executor_metadata() == m
    with pytest.raises(ModelError, match="expected EmbeddingMetadataProto in the bundle, got Llm"):
        bundle.embedding_metadata()


def test_embedding_metadata() -> None:
    m = embedding_metadata_pb2.EmbeddingMetadata()
    m.embedding_model_type.SetInParent()
    section = (TYPES.EmbeddingMetadataProto, {}, m.SerializeToString())
    assert jd.open_bundle(litertlm([section])).embedding_metadata() == m


def tokenizers() -> dict[str, Bundle]:
    sp = [(TYPES.SP_Tokenizer, {}, sentencepiece_model()), *parts()]
    hf = [*parts()]
    return {
        "SentencePiece": jd.open_bundle(litertlm(sp)),
        "Hugging Face": jd.open_bundle(litertlm(hf)),
    }


@pytest.mark.parametrize("kind", ["SentencePiece", "Hugging Face"])
def test_tokenizers_encode_and_decode(kind: str) -> None:
    tokenizer = tokenizers()[kind].tokenizer()
    assert tokenizer.kind == kind
    ids = tokenizer.encode("the cat ran")
    assert tokenizer.decode(ids) == "the cat ran"
    assert all(tokenizer.token_id(tokenizer.token(i)) == i for i in ids)
    assert tokenizer.token_id("no such token") is None
    assert tokenizer.decode(np.asarray(ids)) == "the cat ran"
    assert str(tokenizer.size) in repr(tokenizer)
    for wrong in (-1, tokenizer.size, 1 << 40):
        with pytest.raises(ValueError, match=f"one of {tokenizer.size} tokens, got {wrong}"):
            tokenizer.decode([wrong])
        with pytest.raises(ValueError, match="expected an id"):
            tokenizer.token(wrong)


def test_special_tokens_are_neither_added_nor_left_out() -> None:
    tokenizer = tokenizers()["Hugging Face"].tokenizer()
    assert tokenizer.encode("the <eos>") == [2, 1]
    assert tokenizer.decode([2, 1]) == "the <eos>"


@pytest.mark.parametrize("kind", ["Hugging Face", "SentencePiece"])
def test_other_threads_run_while_a_text_is_encoded(kind: str) -> None:
    tokenizer, has_ended, turns = tokenizers()[kind].tokenizer(), threading.Event(), 0
    with ThreadPoolExecutor(1) as threads:
        encoding = threads.submit(tokenizer.encode, "the cat ran " * 100_000)
        encoding.add_done_callback(lambda _: has_ended.set())
        while not has_ended.wait(0.001):
            turns += 1
    assert len(encoding.result()) >= 300_000
    assert turns > 5
    start = tokenizers()["SentencePiece"].tokenizer()
    assert start.token_id("<s>") not in start.encode("the")


def test_a_model_may_have_its_own_tokenizer() -> None:
    own = (TYPES.SP_Tokenizer, {"model_type": "tf_lite_text_encoder"}, sentencepiece_model())
    bundle = jd.open_bundle(litertlm([own, *parts()]))
    assert bundle.tokenizer().kind == "Hugging Face"
    assert bundle.tokenizer("text_encoder").kind == "SentencePiece"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda b: b.metadata, "expected LlmMetadataProto in the bundle, got hands.task, "),
        (lambda b: b.tokenizer(), "expected a tokenizer in the bundle, got hands.task, "),
        (lambda b: b.data("x"), "expected a section of hands.task, "),
    ],
)
def test_what_a_bundle_lacks_is_refused(call: Callable[[Bundle], object], says: str) -> None:
    with pytest.raises(ModelError, match=re.escape(says)):
        call(jd.open_bundle(gestures()))


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(multiplier())
    with pytest.raises(ModelError, match=r"expected a bundle, .*; it looks like a single model"):
        jd.open_bundle(tmp_path / "m.tflite")
    (tmp_path / "b.task").write_bytes(gestures())
    with pytest.raises(ModelError, match=r"remove '!gestures\.tflite'"):
        jd.open_bundle(f"{tmp_path}/b.task!gestures.tflite")
    with pytest.raises(ModelError, match="No such file"):
        jd.open_bundle(tmp_path / "missing.litertlm")


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("tokenizers", lambda b: b.tokenizer()),
        ("litert_lm_builder.runtime.proto.llm_metadata_pb2", lambda b: b.metadata),
    ],
)
def test_a_missing_package_is_named(
    module: str, call: Callable[[Bundle], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = jd.open_bundle(litertlm(parts()))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        OptionError, match=r"is not installed .*pip install '(litert-lm-builder|.\[lm)"
    ):
        call(bundle)


@pytest.mark.parametrize("name", ["qwen3_tiny_wi8", "gemma3_tiny_wi4"])
def test_a_bundle_of_litert_torch(name: str) -> None:
    path = MODELS / f"{name}.litertlm"
    if not path.exists():
        pytest.skip("no bundles in ../shared/models/lm")
    bundle = jd.open_bundle(path)
    assert bundle.metadata.model_type == name.partition("_")[0]
    assert bundle.metadata.max_num_tokens == 256
    tokenizer = bundle.tokenizer()
    text = "<|im_start|>user\nWhere is Zürich?<|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.token_id("<|im_end|>") == tokenizer.encode("<|im_end|>")[0]
    interpreter = jd.Interpreter(f"{path}!prefill_decode")
    assert {"decode", "prefill_16"} <= set(interpreter.get_signature_list())
    executor = bundle.executor_metadata().llm_executor_metadata
    names = {buffer.decode_input_name for buffer in executor.state_buffers}
    assert names <= set(interpreter.get_signature_list()["decode"]["inputs"])


def test_compressed_json_declares_its_size() -> None:
    content = compressed(hugging_face_json())
    sections = [(TYPES.HF_Tokenizer_Zlib, {}, (1 << 60).to_bytes(8, "little") + content[8:])]
    with pytest.raises(
        ModelError, match=r"must unpack to at most 67108864, got 1152921504606846976"
    ):
        jd.open_bundle(litertlm(sections)).tokenizer()
