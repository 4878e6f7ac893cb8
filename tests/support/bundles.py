"""Small bundles: `.litertlm` files and ZIP archives, with models, tokenizers and metadata."""

import functools
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
import sentencepiece
from litert_lm_builder import litertlm_header_schema_py_generated as schema
from litert_lm_builder.runtime.proto import llm_metadata_pb2

from jaxdelegate.testing import ModelBuilder

BLOCK = 16 << 10
TEXTS = ("the cat sat on the mat", "a dog ran to the cat", "hello, world", "the end is near")
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

# A section: its type's number, its items, its bytes.
Part = tuple[int, Mapping[str, Any], bytes]
TYPES = schema.AnySectionDataType


@functools.cache
def multiplier(factor: float = 2.0, size: int = 4) -> bytes:
    """A model with two signatures that multiplies by a constant."""
    builder = ModelBuilder()
    x, y = builder.input((size,)), builder.tensor((size,))
    builder.operator("MUL", [x, builder.constant(np.full(size, factor, np.float32))], [y])
    builder.outputs(y)
    for key in ("prefill_8", "decode"):
        builder.signature(key, {"kv_cache_k_0": x}, {"logits": y})
    return builder.build()


@functools.cache
def sentencepiece_model() -> bytes:
    """A trained SentencePiece model of 40 pieces."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 4),
        model_writer=written,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return written.getvalue()


def hugging_face_json() -> bytes:
    """The JSON of a tokenizer of words."""
    words = ["<unk>", "<eos>", *dict.fromkeys(" ".join(TEXTS).replace(",", " ,").split())]
    added = [
        {
            "id": i, "content": words[i], "special": True, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False,
        }
        for i in (0, 1)
    ]  # fmt: skip
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {"type": "Whitespace"},
            "model": {
                "type": "WordLevel",
                "vocab": {word: i for i, word in enumerate(words)},
                "unk_token": "<unk>",
            },
        }
    ).encode()


def compressed(content: bytes) -> bytes:
    """A section HF_Tokenizer_Zlib."""
    return len(content).to_bytes(8, "little") + zlib.compress(content)


def llm_metadata(**fields: Any) -> bytes:
    """An LlmMetadata with a start token, two stop tokens, a sampler and a template."""
    m = llm_metadata_pb2.LlmMetadata(max_num_tokens=64, jinja_prompt_template=TEMPLATE, **fields)
    m.start_token.token_ids.ids.append(1)
    m.stop_tokens.add().token_str = "<eos>"
    m.stop_tokens.add().token_ids.ids.extend((3, 4))
    m.sampler_params.type, m.sampler_params.k = m.sampler_params.TOP_P, 5
    m.sampler_params.p, m.sampler_params.temperature = 0.5, 0.25
    m.llm_model_type.gemma3.SetInParent()
    return bytes(m.SerializeToString())


def model_part(model_type: str | None, content: bytes | None = None, **items: Any) -> Part:
    """A section TFLiteModel."""
    named = {} if model_type is None else {"model_type": model_type}
    return TYPES.TFLiteModel, named | items, multiplier() if content is None else content


def parts(*models: str) -> list[Part]:
    """Metadata, both kinds of tokenizers, and models with these types."""
    return [
        (TYPES.LlmMetadataProto, {}, llm_metadata()),
        (TYPES.HF_Tokenizer_Zlib, {}, compressed(hugging_face_json())),
        *(model_part(name) for name in models or ("tf_lite_prefill_decode",)),
    ]


def litertlm(
    sections: Sequence[Part],
    *,
    properties: Mapping[str, Any] | None = None,
    spans: Sequence[tuple[int, int]] | None = None,
) -> bytes:
    """A `.litertlm` file; `spans` are begins and ends that its header declares instead."""
    places, at = [], BLOCK
    for *_, content in sections:
        places.append((at, at + len(content)))
        at += -(-len(content) // BLOCK) * BLOCK
    header = _header(sections, spans or places, properties or {})
    start = b"LITERTLM" + b"".join(n.to_bytes(4, "little") for n in (1, 7, 0, 0))
    start += (32 + len(header)).to_bytes(8, "little") + header
    file = bytearray(places[-1][1] if places else len(start))
    file[: len(start)] = start
    for (begin, end), (*_, content) in zip(places, sections, strict=True):
        file[begin:end] = content
    return bytes(file)


def _header(
    sections: Sequence[Part], spans: Iterable[tuple[int, int]], properties: Mapping[str, Any]
) -> bytes:
    root = schema.LiteRTLMMetaDataT()
    root.systemMetadata, root.sectionMetadata = (
        schema.SystemMetadataT(), schema.SectionMetadataT()
    )  # fmt: skip
    root.systemMetadata.entries = _pairs(properties)
    root.sectionMetadata.objects = []
    for (kind, items, _), (begin, end) in zip(sections, spans, strict=True):
        section = schema.SectionObjectT()
        section.items, section.dataType = _pairs(items), kind
        section.beginOffset, section.endOffset = begin, end
        root.sectionMetadata.objects.append(section)
    builder = flatbuffers.Builder(1024)
    builder.Finish(root.Pack(builder))
    return bytes(builder.Output())


_VALUES = {str: "StringValue", bool: "Bool", int: "Int64", float: "Double"}


def _pairs(items: Mapping[str, Any]) -> list[Any]:
    found = []
    for key, value in items.items():
        kind = _VALUES[type(value)]
        pair = schema.KeyValuePairT()
        pair.key, pair.valueType = key, getattr(schema.VData, kind)
        pair.value = getattr(schema, f"{kind}T")()
        pair.value.value = value
        found.append(pair)
    return found


def zipped(files: Mapping[str, bytes], *, compress: Iterable[str] = ()) -> bytes:
    """A ZIP archive; the files named in `compress` are deflated."""
    written, deflated = io.BytesIO(), set(compress)
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in files.items():
            method = zipfile.ZIP_DEFLATED if name in deflated else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return written.getvalue()


def llm_task(**more: bytes) -> bytes:
    """A `.task` bundle of a language model."""
    files = {
        "TF_LITE_PREFILL_DECODE": multiplier(),
        "TOKENIZER_MODEL": sentencepiece_model(),
        "METADATA": llm_metadata(),
    }
    return zipped(files | more)


def gestures() -> bytes:
    """An archive in an archive, as MediaPipe's gesture recognizer is."""
    hands = zipped({"hand_detector.tflite": multiplier(3.0), "labels.txt": b"left\nright\n"})
    return zipped({"hands.task": hands, "gestures.tflite": multiplier(5.0)})
