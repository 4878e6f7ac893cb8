"""Embeddings equal those of the numpy reference, and of LiteRT-LM where it is installed."""

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import lm
from jaxdelegate.errors import ModelError, OptionError
from tests.support.bundles import multiplier
from tests.support.language_models import SPECIAL, embedders, language_model
from tests.support.text_encoders import embedding_bundle, text_encoder

BOS, EOS = 1, 2
TEXTS = ["abc", "", "a text of 17 byte", "äöü", "abcdefghijkl", "abc", "hello", "b", "x" * 40]
CHUNKS = lm.InputOverflowStrategy.CHUNK_AND_AVERAGE
IS_ABSENT = importlib.util.find_spec("litert_lm") is None


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(embedding_bundle())
    return path


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[lm.EmbeddingEngine]:
    with lm.EmbeddingEngine(path, lm.Backend.CPU(), cache_dir=":nocache", max_batch=4) as engine:
        yield engine


def ids(text: str) -> list[int]:
    """The bytes, between the special tokens."""
    return [BOS, *(len(SPECIAL) + byte for byte in text.encode()), EOS]


@functools.cache
def runner(content: bytes, key: str) -> Any:
    return jd.Interpreter(model_content=content).get_signature_runner(key)


def looked_up(tokens: Sequence[int]) -> list[np.ndarray]:
    """What both embedders compute from tokens."""
    keys = ("decode_embedder", "decode_per_layer_embedder")
    runners = [runner(model, key) for model, key in zip(embedders(), keys, strict=True)]
    rows = [
        [run(token_ids=np.full((1, 1), token, np.int32))["embeddings"] for token in tokens]
        for run in runners
    ]
    return [np.concatenate(row, axis=1) for row in rows]


def expected(tokens: Sequence[int], length: int) -> np.ndarray:
    """The embedding by numpy kernels, with the encoder of a length; not normalized."""
    embeddings, per_layer = looked_up([*tokens, *[0] * (length - len(tokens))])
    mask = (np.arange(length) < len(tokens)).astype(np.float32)[None]
    run = runner(text_encoder(), f"encoder_{length}")
    found = run(embeddings=embeddings, per_layer_embeddings=per_layer, input_mask=mask)
    row: np.ndarray = found["output"][0]
    return row


def embedded(engine: lm.EmbeddingEngine, contents: Any, **options: Any) -> np.ndarray:
    chosen = lm.EmbeddingOptions(**{"normalize": False, **options})
    return np.array(engine.compute_embedding(contents, chosen).embedding)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("text", "length"), [("abc", 8), ("", 8), ("äöü", 8), ("abcdefg", 16)])
def test_an_embedding(engine: lm.EmbeddingEngine, text: str, length: int) -> None:
    """The shortest encoder computes it, between the declared tokens."""
    wanted = expected(ids(text), length)
    close(embedded(engine, text), wanted)
    close(embedded(engine, text, normalize=None), wanted / np.linalg.norm(wanted))
    close(
        embedded(engine, text, normalize=None, output_size=3),
        wanted[:3] / np.linalg.norm(wanted[:3]),
    )
    close(embedded(engine, text, output_size=0), wanted)


def test_contents_are_parts_of_a_text(engine: lm.EmbeddingEngine) -> None:
    wanted = embedded(engine, "abc")
    for contents in (["a", "bc"], lm.Content.Text("abc"), lm.Contents.of("ab", "c")):
        assert embedded(engine, contents).tolist() == wanted.tolist()
    close(embedded(engine, "abc", insert_special_tokens=False), expected(ids("abc")[1:-1], 8))


def test_many_texts_are_rows(engine: lm.EmbeddingEngine) -> None:
    options = lm.EmbeddingOptions(input_overflow_strategy=CHUNKS)
    found = engine.compute_embedding_batch(TEXTS, options)
    assert len(found) == len(TEXTS)
    for text, response in zip(TEXTS, found, strict=True):
        alone = engine.compute_embedding(text, options).embedding
        np.testing.assert_allclose(response.embedding, alone, rtol=0, atol=1e-6)
    assert engine.compute_embedding_batch([]) == []


def test_texts_that_are_too_long(engine: lm.EmbeddingEngine) -> None:
    text = "abcdefghijklmnopqrst"
    tokens = ids(text)
    with pytest.raises(ValueError, match="at most 16 tokens, got 22: shorten the text, or set inp"):
        embedded(engine, text)
    cut = lm.InputOverflowStrategy.TRUNCATE
    truncated = expected([*tokens[:15], EOS], 16)
    close(embedded(engine, text, input_overflow_strategy=cut), truncated)
    close(
        embedded(engine, text, input_overflow_strategy=cut, insert_special_tokens=False),
        expected(tokens[1:17], 16),
    )
    mean = (expected(tokens[:16], 16) + expected(tokens[16:], 8)) / 2
    close(embedded(engine, text, input_overflow_strategy=CHUNKS), mean)


def without_mask(path: Path, **declared: int) -> bytes:
    """Write a bundle of encoders without a mask; returns their model."""

    def edit(metadata: Any) -> None:
        for name, value in declared.items():
            setattr(metadata, name, value)

    model = text_encoder((4, 8, 32), has_mask=False, has_per_layer=False)
    others = {"tf_lite_embedder": embedders()[0]}
    path.write_bytes(embedding_bundle(model=model, others=others, edit=edit))
    return model


def test_the_token_0_follows_short_texts(tmp_path: Path) -> None:
    """LiteRT-LM fills the inputs so, which a model without a mask sees."""
    path = tmp_path / "model.litertlm"
    model = without_mask(path)
    embeddings, _ = looked_up([BOS, EOS, 0, 0])
    with lm.EmbeddingEngine(path, lm.Backend.CPU(), cache_dir=":nocache") as engine:
        close(embedded(engine, ""), runner(model, "encoder_4")(embeddings=embeddings)["output"][0])


@pytest.mark.parametrize(
    ("lengths", "declared", "used"),
    [
        ({}, {}, [4, 8, 32]),
        ({"max_input_length": 5}, {}, [4, 8]),
        ({"min_input_length": 5}, {}, [8, 32]),
        ({}, {"min_input_length": 5, "max_input_length": 8}, [8]),
        ({"max_input_length": 9}, {"max_input_length": 8}, [4, 8, 32]),
        ({"min_input_length": 0, "max_input_length": -1}, {}, [4, 8, 32]),
    ],
)
def test_lengths(
    lengths: dict[str, int], declared: dict[str, int], used: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "model.litertlm"
    without_mask(path, **declared)
    with lm.EmbeddingEngine(path, lm.Backend.CPU(), **lengths) as engine:
        assert engine._model is not None
        assert [encoder.length for encoder in engine._model.graph.encoders] == used
        assert (engine.min_input_length, engine.max_input_length) == (
            lengths.get("min_input_length"),
            lengths.get("max_input_length"),
        )


def test_lengths_that_no_encoder_has(path: Path) -> None:
    for lengths in (
        {"max_input_length": 17},
        {"min_input_length": 17},
        {"min_input_length": 9, "max_input_length": 8},
    ):
        with pytest.raises(OptionError, match="expected at most 16 tokens, in this order, got"):
            lm.EmbeddingEngine(path, **lengths)


def test_errors(engine: lm.EmbeddingEngine, path: Path) -> None:
    with pytest.raises(ValueError, match="expected at least one token, got none"):
        embedded(engine, "", insert_special_tokens=False)
    with pytest.raises(ValueError, match="output_size: expected at most 12, got 13"):
        embedded(engine, "a", output_size=13)
    with pytest.raises(OptionError, match="ImageBytes is not supported: expected a text"):
        embedded(engine, ["a", lm.Content.ImageBytes(b"")])
    with pytest.raises(TypeError, match="expected a str or a Content, got bytes"):
        embedded(engine, [b"a"])
    with pytest.raises(TypeError, match="expected a list of texts, got a str"):
        engine.compute_embedding_batch("a")
    with pytest.raises(OptionError, match="vision_tokens_per_image is not supported, got 9"):
        lm.EmbeddingOptions(vision_tokens_per_image=9)
    with pytest.raises(OptionError, match="vision_backend is not supported"):
        lm.EmbeddingEngine(path, vision_backend=lm.Backend.CPU())
    closed = lm.EmbeddingEngine(path)
    closed.close()
    with pytest.raises(RuntimeError, match="the engine is closed"):
        closed.compute_embedding("a")


@pytest.mark.parametrize(
    ("model", "others", "problem"),
    [
        (multiplier(), {}, r"expected a signature 'encoder\.\.\.', got prefill_8, decode"),
        (text_encoder(), {}, "expected a model 'embedder' in the bundle.*got no other models"),
        (
            text_encoder(),
            {"tf_lite_embedder": embedders()[0]},
            "expected a model 'per_layer_embedder' in the bundle.*got embedder",
        ),
        (
            text_encoder(has_per_layer=False),
            {"tf_lite_embedder": embedders(hidden=8)[0]},
            r"input 'embeddings' to have 8 times \[1, 1, 8\] of 'embedder', got \[1, 8, 16\]",
        ),
    ],
)
def test_bundles_that_are_refused(
    model: bytes, others: dict[str, bytes], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(embedding_bundle(model=model, others=others))
    with pytest.raises(ModelError, match=problem):
        lm.EmbeddingEngine(path)


def test_a_bundle_without_a_text_encoder(tmp_path: Path) -> None:
    content = embedding_bundle(others={"tf_lite_prefill_decode": language_model()})
    (tmp_path / "b.litertlm").write_bytes(
        content.replace(b"tf_lite_text_encoder", b"tf_lite_text_decoder")
    )
    with pytest.raises(ModelError, match="expected a text encoder, the part 'text_encoder', got"):
        lm.EmbeddingEngine(tmp_path / "b.litertlm")


def ran(program: str, *arguments: object) -> Any:
    """The JSON that a process prints last."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


PROCESS = """
import json, sys
from jaxdelegate import lm

with lm.EmbeddingEngine(sys.argv[1], cache_dir=sys.argv[2]) as engine:
    found = engine.compute_embedding_batch(["abc", "b"])
print(json.dumps([[r.embedding for r in found], "jax" in sys.modules]))
"""


@pytest.mark.slow
def test_the_next_process_loads_programs_and_needs_no_jax(path: Path, tmp_path: Path) -> None:
    first, second = (ran(PROCESS, path, tmp_path) for _ in range(2))
    assert (first[1], second[1]) == (True, False)
    assert second[0] == first[0]
    assert len([*tmp_path.glob("*.program")]) == 1


LITERT_LM = """
import json, sys
import litert_lm

texts, options = json.loads(sys.argv[2])
engine = litert_lm.EmbeddingEngine(sys.argv[1], litert_lm.Backend.CPU(), cache_dir=":nocache")
chosen = [litert_lm.EmbeddingOptions(**o) for o in options]
print(json.dumps([[engine.compute_embedding(t, o).embedding for t in texts] for o in chosen]))
"""


@pytest.mark.skipif(IS_ABSENT, reason="litert_lm is not installed")
def test_litert_lm_returns_the_same(engine: lm.EmbeddingEngine, path: Path) -> None:
    options: list[dict[str, Any]] = [
        {"input_overflow_strategy": 0},
        {"input_overflow_strategy": 1, "normalize": False},
        {"input_overflow_strategy": 1, "output_size": 3},
    ]
    texts = [*TEXTS, ["a", "bc"]]
    wanted = ran(LITERT_LM, path, json.dumps([texts, options]))
    for chosen, rows in zip(options, wanted, strict=True):
        found = engine.compute_embedding_batch(texts, lm.EmbeddingOptions(**chosen))
        close([response.embedding for response in found], rows)
