"""Sounds in prompts: answers equal those of numpy kernels."""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.bundles.bundle import open_bundle
from jaxdelegate.compile import precision_policy
from jaxdelegate.compile.precision_policy import emulated_policy
from jaxdelegate.errors import GenerationError, ModelError, OptionError
from jaxdelegate.lm.audio.decoding import samples_of
from jaxdelegate.lm.audio.sound_encoder import takes_sounds
from jaxdelegate.lm.audio.spectra import log_mel_spectra
from jaxdelegate.lm.contents.content_encoder import ContentEncoder
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.options import DelegateOptions
from tests.support.audio_models import (
    audio_adapter,
    audio_encoder,
    file_of,
    rows_by_numpy,
    sound_bundle,
    tone,
)
from tests.support.language_models import SPECIAL, until_stop
from tests.support.vision_models import answer_by_numpy, gemma3, picture
from tests.support.vision_models import file_of as image_of

CPU = lm.Backend.CPU()
Content, Contents = lm.Content, lm.Contents
SHORT, LONG = file_of(tone(1000)), file_of(tone(8100, seed=1))  # 2 and 13 places
IMAGE = image_of(picture(30, 20))
BOS, START = SPECIAL.index("<bos>"), SPECIAL.index("<|im_start|>")


def opened(folder: Path, content: bytes, **options: Any) -> lm.Engine:
    path = folder / "model.litertlm"
    path.write_bytes(content)
    return lm.Engine(path, CPU, cache_dir=":nocache", audio_backend=CPU, **options)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    folder = tmp_path_factory.mktemp("bundles")
    with opened(folder, sound_bundle(sees=True), vision_backend=CPU) as engine:
        yield engine


def ids(text: str) -> list[int]:
    return [len(SPECIAL) + byte for byte in text.encode()]


def rows(data: bytes) -> list[np.ndarray]:
    return [*rows_by_numpy(log_mel_spectra(samples_of(data)))]


def said(engine: lm.Engine, *parts: Any, count: int = 8) -> str:
    with engine.create_conversation(max_output_tokens=count) as conversation:
        return str(conversation.send_message(Contents.of(*parts)))


def text_of(engine: lm.Engine, tokens: list[int]) -> str:
    return engine.detokenize(until_stop(tokens))


@pytest.mark.parametrize(("data", "places"), [(SHORT, 2), (LONG, 13)])
def test_a_sound_between_texts(engine: lm.Engine, data: bytes, places: int):
    own = rows(data)
    assert len(own) == places + 1  # and the end
    prompt = [BOS, *ids("<user>what"), START, *own, *ids(" is it?:")]
    wanted = text_of(engine, answer_by_numpy(prompt, 8))
    assert said(engine, "what", Content.AudioBytes(data), " is it?") == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"options": {"compute_dtype": "float16"}},
        {"activation_data_type": lm.ActivationDataType.FLOAT16},
    ],
    ids=str,
)
def test_encoders_compute_as_the_engine(
    engine: lm.Engine, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    policy = precision_policy.policy_here

    def as_on_a_gpu(options: DelegateOptions, platform: str) -> PrecisionPolicy:
        is_short = options.compute_dtype == "float16"
        return emulated_policy("float16") if is_short else policy(options, platform)

    monkeypatch.setattr(precision_policy, "policy_here", as_on_a_gpu)
    content = sound_bundle(sees=True)
    with opened(tmp_path, content, vision_backend=CPU, **options) as reduced:
        for kind, data in ("audio", LONG), ("image", IMAGE):
            exact, rounded = (encoded(e.contents.encoders[kind], data) for e in (engine, reduced))
            error = np.abs(rounded - exact).max() / np.abs(exact).max()
            assert 1e-6 < error < 2e-3  # of float16, 2^-11, a few times


def encoded(encoder: ContentEncoder, data: bytes) -> np.ndarray:
    content = encoder.read(data)
    encoder.encode([content])
    assert content.embeddings is not None
    return content.embeddings


def test_embeddings_equal_those_of_numpy(engine: lm.Engine):
    assert engine.sounds is not None
    found = encoded(engine.sounds, LONG)
    np.testing.assert_allclose(found, np.stack(rows(LONG)), rtol=1e-5, atol=1e-5)


def test_a_sound_an_image_and_a_second_message(engine: lm.Engine):
    assert engine.images is not None
    image = engine.images.read(IMAGE)
    engine.images.encode([image])
    assert image.embeddings is not None
    seen, first, second = [*image.embeddings], rows(SHORT), rows(LONG)
    before_image = SPECIAL.index("<|im_end|>")
    prompt = [BOS, *ids("<user>"), START, *first, before_image, *seen, START, *second, *ids("?:")]
    answer = until_stop(answer_by_numpy(prompt, 4))
    with engine.create_conversation(max_output_tokens=4) as conversation:
        parts = Content.AudioBytes(SHORT), Content.ImageBytes(IMAGE), Content.AudioBytes(LONG)
        assert str(conversation.send_message(Contents.of(*parts, "?"))) == engine.detokenize(answer)
        assert conversation.token_count == len(prompt) + len(answer)
        more = str(conversation.send_message(Contents.of(Content.AudioBytes(SHORT), "!")))
        assert conversation.messages[0].contents[0] == Content.AudioBytes(SHORT)
    prompt += [*answer, *ids("<user>"), START, *first, *ids("!:")]
    assert more == text_of(engine, answer_by_numpy(prompt, 4))


def test_a_session(engine: lm.Engine):
    assert engine.images is not None
    image = engine.images.read(IMAGE)
    engine.images.encode([image])
    assert image.embeddings is not None
    prompt = [BOS, *ids("hear "), START, *rows(SHORT), *ids("?")]
    with engine.create_session(apply_prompt_template=False, max_output_tokens=4) as session:
        session.run_prefill(["hear ", Content.AudioBytes(SHORT), "?"])
        answer = until_stop(answer_by_numpy(prompt, 4))
        assert session.run_decode().texts == [engine.detokenize(answer)]
        session.run_prefill([Content.Text(" see "), Content.ImageBytes(IMAGE), "!"])
        prompt += [*answer, *ids(" see "), SPECIAL.index("<|im_end|>"), *image.embeddings]
        wanted = text_of(engine, answer_by_numpy([*prompt, *ids("!")], 4))
        assert session.run_decode().texts == [wanted]
        with pytest.raises(OptionError, match="run_prefill: expected texts, images and sounds"):
            session.run_prefill([Content.ToolResponse("f", 1)])
        with pytest.raises(GenerationError, match="sound 1 of the message: the sound is damaged"):
            session.run_prefill([Content.AudioBytes(SHORT[:100]), "?"])


def test_prompts(engine: lm.Engine):
    prompts = [[BOS, *ids("a"), START, *rows(data), *ids("?")] for data in (SHORT, LONG)]
    given = [Contents.of("a", Content.AudioBytes(data), "?") for data in (SHORT, LONG)]
    found = engine.generate(given, max_output_tokens=6)
    wanted = [until_stop(answer_by_numpy(prompt, 6)) for prompt in prompts]
    assert [each.token_ids for each in found] == wanted


def test_forms_of_one_sound(engine: lm.Engine, tmp_path: Path):
    wanted = said(engine, Content.AudioBytes(SHORT), "?")
    (tmp_path / "sound").write_bytes(SHORT)
    assert said(engine, Content.AudioFile(str(tmp_path / "sound")), "?") == wanted
    with engine.create_conversation(max_output_tokens=8) as conversation:
        blob = {"type": "audio", "blob": base64.b64encode(SHORT).decode()}
        message = {"role": "user", "content": [blob, {"type": "text", "text": "?"}]}
        assert str(conversation.send_message(message)) == wanted
    assert engine.sounds is not None
    other = file_of(samples_of(SHORT)[:, None], kind="FLAC")
    assert engine.sounds.read(other).digest == engine.sounds.read(SHORT).digest
    assert engine.sounds.read(LONG).digest != engine.sounds.read(SHORT).digest


def test_pieces_of_several_sounds_are_one_run(engine: lm.Engine, monkeypatch: pytest.MonkeyPatch):
    encoder = engine.sounds
    assert encoder is not None
    files = [file_of(tone(8000, seed=seed)) for seed in (5, 6, 7)]  # 50 frames: 4 pieces
    runs, run = list[int](), encoder._model.embeddings
    monkeypatch.setattr(
        encoder._model, "embeddings", lambda some: runs.append(len(some)) or run(some)
    )
    monkeypatch.setattr(encoder, "_runs_at_once", 1)
    monkeypatch.setattr(encoder, "_most_bytes", sys.maxsize)
    sounds = [encoder.read(data) for data in files]
    encoder.encode(sounds)
    assert runs == [8, 4]
    for sound, data in zip(sounds, files, strict=True):
        np.testing.assert_allclose(sound.embeddings, np.stack(rows(data)), rtol=1e-5, atol=1e-5)
    encoder.encode([encoder.read(data) for data in files])
    assert runs == [8, 4]  # they are known


def test_what_messages_may_not_have(engine: lm.Engine, tmp_path: Path):
    with pytest.raises(GenerationError, match="sound 2 of the message: the sound is damaged"):
        said(engine, Content.AudioBytes(SHORT), Content.AudioBytes(SHORT[:100]), "?")
    with pytest.raises(GenerationError, match=r"sound 1 of the message: .*No such file"):
        said(engine, Content.AudioFile(str(tmp_path / "none.wav")), "?")
    with pytest.raises(GenerationError, match="one for each sound, got 2"):
        said(engine, Content.AudioBytes(SHORT), " and <|audio|>")
    path = tmp_path / "model.litertlm"
    path.write_bytes(sound_bundle())
    with (
        lm.Engine(path, CPU, cache_dir=":nocache") as deaf,
        pytest.raises(OptionError, match="takes no sounds: open it with audio_backend"),
    ):
        said(deaf, Content.AudioBytes(SHORT), "?")


@pytest.mark.parametrize("part", ["audio_encoder_hw", "audio_adapter", "end_of_audio"])
def test_bundles_without_a_part(tmp_path: Path, part: str):
    with pytest.raises(OptionError, match=f"takes no sounds: it lacks {part}"):
        opened(tmp_path, sound_bundle(without=[part]))
    assert not takes_sounds(open_bundle(tmp_path / "model.litertlm"))


def samples(m: Any) -> None:
    m.llm_model_type.gemma4.skip_mel_spectrogram_extraction = True


@pytest.mark.parametrize(
    ("edit", "problem"),
    [(gemma3, "expected a model of the family gemma4, got gemma3"), (samples, "takes samples")],
)
def test_families_without_sounds(tmp_path: Path, edit: Any, problem: str):
    with pytest.raises(OptionError, match=f"audio_backend: .*{problem}"):
        opened(tmp_path, sound_bundle(edit=edit))
    assert not takes_sounds(open_bundle(tmp_path / "model.litertlm"))


@pytest.mark.parametrize(
    ("encoder", "problem"),
    [
        (audio_encoder(has_state=True), "an encoder of whole sounds .*, got one with states"),
        (audio_adapter(), r"expected src_inputs \[1, frames, 128\]"),
    ],
)
def test_other_encoders(tmp_path: Path, encoder: bytes, problem: str):
    with pytest.raises(ModelError, match=f"!audio_encoder_hw: .*{problem}"):
        opened(tmp_path, sound_bundle(encoder=encoder))
