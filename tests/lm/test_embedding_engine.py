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
from jaxdelegate.errors import GenerationError, ModelError, OptionError
from jaxdelegate.lm.audio.decoding import samples_of
from jaxdelegate.lm.audio.spectra import log_mel_spectra
from jaxdelegate.lm.encoder_graph import EncoderSpec
from jaxdelegate.lm.vision.decoding import pixels_of
from jaxdelegate.lm.vision.tensors import scaled, tensors_of
from jaxdelegate.thunks import calls
from tests.support.audio_models import file_of as sound_of
from tests.support.audio_models import rows_by_numpy as sounds_by_numpy
from tests.support.audio_models import tone
from tests.support.bundles import multiplier
from tests.support.language_models import SPECIAL, embedders, language_model
from tests.support.text_encoders import embedding_bundle, gemma, multimodal_bundle, text_encoder
from tests.support.vision_models import (
    adapter,
    end_of_vision,
    patch_encoder,
    picture,
    rows_by_numpy,
)
from tests.support.vision_models import file_of as image_of

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


@pytest.mark.usefixtures("built")
def test_a_cpu_runs_the_encoder_without_xlas_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_seconds", lambda _: 0.0)  # whatever takes less time
    path = tmp_path / "model.litertlm"
    path.write_bytes(embedding_bundle(model=text_encoder((16,), size=20)))
    with lm.EmbeddingEngine(path, lm.Backend.CPU(), cache_dir=":nocache") as engine:
        model = engine._model
        assert model is not None
        first, *others = (model.embeddings([ids("abc")], 1) for _ in range(5))
        program, _ = model.program(EncoderSpec("encoder_16", 1))
        assert program._direct is not None
        assert program._direct.is_ready
        for rows in others:
            np.testing.assert_array_equal(rows, first)


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
    with pytest.raises(OptionError, match="takes no images: open it with vision_backend="):
        embedded(engine, ["a", lm.Content.ImageBytes(b"")])
    with pytest.raises(OptionError, match="ToolResponse is not supported: expected texts, images"):
        embedded(engine, [lm.Content.ToolResponse("f", 1)])
    with pytest.raises(TypeError, match="expected a str or a Content, got bytes"):
        embedded(engine, [b"a"])
    with pytest.raises(TypeError, match="expected a list of texts, got a str"):
        engine.compute_embedding_batch("a")
    with pytest.raises(OptionError, match="takes no images: it lacks vision_encoder"):
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


IMAGE, SOUND = image_of(picture(30, 20)), sound_of(tone(1000))
START, END = SPECIAL.index("<|im_start|>"), SPECIAL.index("<|im_end|>")
CPU = lm.Backend.CPU()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "both.litertlm"
    path.write_bytes(multimodal_bundle())
    return path


@pytest.fixture(scope="module")
def multimodal(both: Path) -> Iterator[lm.EmbeddingEngine]:
    backends: Any = dict.fromkeys(("backend", "vision_backend", "audio_backend"), CPU)
    with lm.EmbeddingEngine(both, cache_dir=":nocache", **backends) as engine:
        yield engine


def image_rows(engine: lm.EmbeddingEngine, most: int | None = None) -> list[np.ndarray]:
    """The places of IMAGE and its end, by numpy kernels."""
    graph = engine.contents.encoders["image"].graph
    tensors = tensors_of(pixels_of(IMAGE), graph if most is None else graph.limited(most))
    patches = scaled(tensors.pixels, graph.form)
    return [*rows_by_numpy(patches, tensors.positions, tensors.places)]


def sound_rows() -> list[np.ndarray]:
    return [*sounds_by_numpy(log_mel_spectra(samples_of(SOUND)))]


def expected_of(places: Sequence[int | np.ndarray], length: int = 32) -> np.ndarray:
    """The embedding of tokens and rows of embeddings, by numpy kernels; not normalized."""
    tokens = [0 if isinstance(place, np.ndarray) else place for place in places]
    embeddings, per_layer = looked_up([*tokens, *[0] * (length - len(tokens))])
    for row, place in zip(embeddings[0], places, strict=False):
        if isinstance(place, np.ndarray):
            row[:] = place
    mask = (np.arange(length) < len(tokens)).astype(np.float32)[None]
    run = runner(text_encoder((8, 32)), f"encoder_{length}")
    found = run(embeddings=embeddings, per_layer_embeddings=per_layer, input_mask=mask)
    row: np.ndarray = found["output"][0]
    return row


def test_images_and_sounds(multimodal: lm.EmbeddingEngine, tmp_path: Path) -> None:
    """What follows an image is an embedding, what follows a sound here is a token."""
    (tmp_path / "image").write_bytes(IMAGE)
    image, sound = lm.Content.ImageFile(str(tmp_path / "image")), lm.Content.AudioBytes(SOUND)
    seen, heard = [5, *image_rows(multimodal)], [START, *sound_rows()[:-1], END]
    text = ids("ab")[1:-1]
    close(embedded(multimodal, image), expected_of([BOS, *seen, EOS]))
    close(embedded(multimodal, [sound]), expected_of([BOS, *heard, EOS], 8))
    parts = ["ab", image, sound]
    close(embedded(multimodal, parts), expected_of([BOS, *text, *seen, *heard, EOS]))
    bare = [*text, *seen[1:-1], *heard[1:-1]]
    close(embedded(multimodal, parts, insert_special_tokens=False), expected_of(bare))
    options = lm.EmbeddingOptions(normalize=False)
    together = multimodal.compute_embedding_batch([parts, "ab", [image]], options)
    for contents, response in zip((parts, "ab", image), together, strict=True):
        close(response.embedding, embedded(multimodal, contents))


def test_places_of_an_image(multimodal: lm.EmbeddingEngine, both: Path) -> None:
    image = lm.Content.ImageBytes(IMAGE)
    few = image_rows(multimodal, 3)
    assert len(few) < len(image_rows(multimodal))
    wanted = expected_of([BOS, 5, *few, EOS], 8)
    close(embedded(multimodal, image, vision_tokens_per_image=3), wanted)
    with lm.EmbeddingEngine(both, vision_backend=CPU, vision_tokens_per_image=3) as engine:
        close(embedded(engine, image), wanted)
        assert engine.vision_backend == CPU
    with pytest.raises(OptionError, match="vision_tokens_per_image: expected 1 to 12, got 13"):
        embedded(multimodal, image, vision_tokens_per_image=13)


def test_a_damaged_image(multimodal: lm.EmbeddingEngine) -> None:
    with pytest.raises(GenerationError, match="the image is damaged"):
        embedded(multimodal, lm.Content.ImageBytes(IMAGE[:100]))


def other_sounds(m: Any) -> None:
    gemma(m)
    m.audio_preprocessor.miniaudio.sample_rate_hz = 8000


@pytest.mark.parametrize(
    ("edit", "argument", "problem"),
    [
        (lambda _: None, "vision_backend", "of the family embedding_gemma_v2, got generic_model"),
        (lambda _: None, "audio_backend", "of the family embedding_gemma_v2, got generic_model"),
        (other_sounds, "audio_backend", "expected spectra as of gemma4, got an audio_prepr"),
    ],
)
def test_encoders_that_are_refused(edit: Any, argument: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(multimodal_bundle(edit=edit))
    backend: Any = {argument: CPU}
    with pytest.raises(OptionError, match=f"{argument}: .*{problem}"):
        lm.EmbeddingEngine(path, **backend)


def test_embeddings_of_another_size(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    others = {"tf_lite_embedder": embedders(hidden=8)[0]}
    seen = {
        "tf_lite_vision_encoder": patch_encoder(),
        "tf_lite_vision_adapter": adapter(),
        "tf_lite_end_of_vision": end_of_vision(),
    }
    model = text_encoder(hidden=8, has_per_layer=False)
    path.write_bytes(embedding_bundle(model=model, others={**others, **seen}, edit=gemma))
    with pytest.raises(ModelError, match=r"expected embeddings of 16 elements, .*, got \[8\]"):
        lm.EmbeddingEngine(path, vision_backend=CPU)


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


LITERT_LM_FILES = """
import json, sys
import litert_lm
from litert_lm import Backend, Content

b = {n: Backend.CPU() for n in ("backend", "vision_backend", "audio_backend")}
engine = litert_lm.EmbeddingEngine(sys.argv[1], cache_dir=":nocache", **b)
image, sound = Content.ImageFile(sys.argv[2]), Content.AudioFile(sys.argv[3])
asked, found = [[image], ["ab", image, "c", sound]], []
for options in ({}, {"insert_special_tokens": False}):
    chosen = litert_lm.EmbeddingOptions(normalize=False, **options)
    found.append([engine.compute_embedding(each, chosen).embedding for each in asked])
print(json.dumps(found))
"""


@pytest.mark.skipif(IS_ABSENT, reason="litert_lm is not installed")
def test_litert_lm_sees_and_hears_the_same(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(multimodal_bundle(as_litert_lm_needs=True))
    files = [tmp_path / "image.png", tmp_path / "sound.wav"]
    for file, data in zip(files, (IMAGE, SOUND), strict=True):
        file.write_bytes(data)
    wanted = ran(LITERT_LM_FILES, path, *files)
    image, sound = lm.Content.ImageBytes(IMAGE), lm.Content.AudioBytes(SOUND)
    asked = [image, ["ab", image, "c", sound]]
    backends: Any = dict.fromkeys(("backend", "vision_backend", "audio_backend"), CPU)
    with lm.EmbeddingEngine(path, cache_dir=":nocache", **backends) as engine:
        for special, rows in zip((None, False), wanted, strict=True):
            options = lm.EmbeddingOptions(normalize=False, insert_special_tokens=special)
            found = [r.embedding for r in engine.compute_embedding_batch(asked, options)]
            np.testing.assert_allclose(found, rows, rtol=1e-4, atol=1e-4)


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
