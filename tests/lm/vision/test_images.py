"""Images in prompts: answers equal those of numpy kernels."""

import base64
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from litert_lm_builder.runtime.proto.llm_model_type_pb2 import LlmModelType
from PIL import Image

from jaxdelegate import lm
from jaxdelegate.bundles.bundle import open_bundle
from jaxdelegate.bundles.metadata import IMAGE_FAMILIES
from jaxdelegate.errors import GenerationError, ModelError, OptionError
from jaxdelegate.kernels import processor
from jaxdelegate.lm.contents.content_program import ContentSpec
from jaxdelegate.lm.contents.encoded_content import EncodedContent
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.soft_tokens import SoftToken
from jaxdelegate.lm.vision import decoding
from jaxdelegate.lm.vision.image_encoder import ImageEncoder
from jaxdelegate.lm.vision.resizing import resized
from jaxdelegate.lm.vision.tensors import scaled, tensors_of
from jaxdelegate.thunks import calls
from tests.lm.test_prompts_together import as_on_a_gpu
from tests.support.language_models import SPECIAL, language_bundle, until_stop
from tests.support.vision_models import (
    PATCH,
    SIDE,
    _runner,
    adapter,
    answer_by_numpy,
    end_of_vision,
    file_of,
    gemma3,
    lfm2,
    patch_encoder,
    picture,
    pixel_encoder,
    rows_by_numpy,
    square_encoder,
    transformer_bundle,
    vision_bundle,
    whole_encoder,
)

CPU = lm.Backend.CPU()
Content, Contents = lm.Content, lm.Contents
FIRST, SECOND = file_of(picture(30, 20)), file_of(picture(9, 40, seed=1))
BOS, START = SPECIAL.index("<bos>"), SPECIAL.index("<|im_start|>")


def opened(folder: Path, content: bytes, **options: Any) -> lm.Engine:
    path = folder / "model.litertlm"
    path.write_bytes(content)
    return lm.Engine(path, CPU, cache_dir=":nocache", **options)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    folder = tmp_path_factory.mktemp("bundles")
    with opened(folder, vision_bundle(), vision_backend=CPU) as engine:
        yield engine


def ids(text: str) -> list[int]:
    return [len(SPECIAL) + byte for byte in text.encode()]


def rows(engine: lm.Engine, data: bytes) -> list[np.ndarray]:
    assert engine.images is not None
    tensors = tensors_of(decoding.pixels_of(data), engine.images.graph)
    assert tensors.positions is not None
    patches = scaled(tensors.pixels, engine.images.graph.form)
    return [*rows_by_numpy(patches, tensors.positions, tensors.places)]


def said(engine: lm.Engine, *parts: Any, count: int = 8) -> str:
    with engine.create_conversation(max_output_tokens=count) as conversation:
        return str(conversation.send_message(Contents.of(*parts)))


def text_of(engine: lm.Engine, tokens: list[int]) -> str:
    return engine.detokenize(until_stop(tokens))


@pytest.mark.parametrize("data", [FIRST, SECOND])
def test_an_image_between_texts(engine: lm.Engine, data: bytes):
    own = rows(engine, data)
    prompt = [BOS, *ids("<user>what"), START, *own, *ids(" is it?:")]
    wanted = text_of(engine, answer_by_numpy(prompt, 8))
    assert said(engine, "what", Content.ImageBytes(data), " is it?") == wanted


def test_two_images_and_a_second_message(engine: lm.Engine):
    first, second = rows(engine, FIRST), rows(engine, SECOND)
    prompt = [BOS, *ids("<user>"), START, *first, *ids(" or "), START, *second, *ids("?:")]
    answer = until_stop(answer_by_numpy(prompt, 4))
    with engine.create_conversation(max_output_tokens=4) as conversation:
        parts = Content.ImageBytes(FIRST), " or ", Content.ImageBytes(SECOND), "?"
        assert str(conversation.send_message(Contents.of(*parts))) == engine.detokenize(answer)
        assert conversation.token_count == len(prompt) + len(answer)
        more = str(conversation.send_message(Contents.of(Content.ImageBytes(FIRST), "!")))
        assert conversation.messages[0].contents[0] == Content.ImageBytes(FIRST)
    prompt += [*answer, *ids("<user>"), START, *first, *ids("!:")]
    assert more == text_of(engine, answer_by_numpy(prompt, 4))


def test_images_of_earlier_messages(engine: lm.Engine):
    before = [
        lm.Message.user(Contents.of(Content.ImageBytes(FIRST), "?")),
        {"role": "assistant", "content": "fine"},
    ]
    prompt = [BOS, *ids("<user>"), START, *rows(engine, FIRST), *ids("?<assistant>fine<user>")]
    prompt += [START, *rows(engine, SECOND), *ids("!:")]
    with engine.create_conversation(max_output_tokens=6, messages=before) as conversation:
        answer = conversation.send_message(Contents.of(Content.ImageBytes(SECOND), "!"))
    assert str(answer) == text_of(engine, answer_by_numpy(prompt, 6))


def test_prompts_with_images(engine: lm.Engine):
    first, second = rows(engine, FIRST), rows(engine, SECOND)
    prompts = [
        [BOS, *ids("a"), START, *first, *ids("?")],
        [BOS, START, *second, *ids("or"), START, *first, *ids("!")],
        [BOS, *ids("text")],
    ]
    one, other = Content.ImageBytes(FIRST), Content.ImageBytes(SECOND)
    given = [Contents.of("a", one, "?"), Contents.of(other, "or", one, "!"), "text"]
    found = engine.generate(given, max_output_tokens=6)
    wanted = [until_stop(answer_by_numpy(prompt, 6)) for prompt in prompts]
    assert [each.token_ids for each in found] == wanted
    assert [each.prompt_tokens for each in found] == [len(prompt) for prompt in prompts]
    with pytest.raises(GenerationError, match=r"image 1 of the message: .* is damaged"):
        engine.generate([Contents.of(Content.ImageBytes(FIRST[:100]), "?")])
    with pytest.raises(
        OptionError, match="expected texts, images and sounds, got a 'tool_response'"
    ):
        engine.generate([Contents.of("?", Content.ToolResponse("f", 1))])


def test_forms_of_one_image(engine: lm.Engine, tmp_path: Path):
    wanted = said(engine, Content.ImageBytes(FIRST), "?")
    (tmp_path / "image").write_bytes(FIRST)
    assert said(engine, Content.ImageFile(str(tmp_path / "image")), "?") == wanted
    with engine.create_conversation(max_output_tokens=8) as conversation:
        blob = {"type": "image", "blob": base64.b64encode(FIRST).decode()}
        parts = [blob, {"type": "text", "text": "?"}]
        message = {"role": "user", "content": parts}
        assert str(conversation.send_message(message)) == wanted


def test_formats_of_equal_pixels_are_one_image(engine: lm.Engine):
    assert engine.images is not None
    image = picture(30, 20)
    digest = engine.images.read(FIRST).digest
    alpha = image.copy()
    alpha.putalpha(picture(30, 20, seed=3, mode="L"))
    for same in (file_of(image, "BMP"), file_of(image, "PPM"), file_of(alpha)):
        assert engine.images.read(same).digest == digest
    assert engine.images.read(file_of(image, "JPEG")).digest != digest
    gray = picture(30, 20, mode="L")
    wanted = engine.images.read(file_of(gray.convert("RGB"))).digest
    assert engine.images.read(file_of(gray)).digest == wanted
    palette = image.quantize(16)
    wanted = engine.images.read(file_of(palette.convert("RGB"))).digest
    assert engine.images.read(file_of(palette)).digest == wanted
    assert engine.images.read(file_of(palette, "GIF")).digest == wanted


def test_the_upper_bits_of_16_count():
    deep = np.arange(600, dtype=np.uint16).reshape(20, 30) * 100
    data = file_of(Image.fromarray(deep))
    np.testing.assert_array_equal(decoding.pixels_of(data)[..., 1], deep >> 8)


def encoded(engine: lm.Engine, data: bytes) -> EncodedContent:
    assert engine.images is not None
    image = engine.images.read(data)
    engine.images.encode([image])
    return image


def prompt(engine: lm.Engine, text: str, *files: bytes) -> list[int]:
    assert engine.images is not None
    images = [encoded(engine, data) for data in files]
    return [BOS, *engine.contents.ids(text, images)]


def test_slots_share_what_is_equal(engine: lm.Engine):
    texts = ["a<|image|>b?", "a<|image|>c?", "a<|image|>b?", "a<|image|>b and more?"]
    files = [FIRST, FIRST, SECOND, FIRST]
    prompts = [prompt(engine, text, file) for text, file in zip(texts, files, strict=True)]
    alone = [_answers(engine, [one])[0] for one in prompts]
    together = _answers(engine, prompts)
    assert [tokens for tokens, _ in together] == [tokens for tokens, _ in alone]
    image = 1 + len(encoded(engine, FIRST).embeddings)  # with the token before it
    assert [reused for _, reused in together] == [0, 2 + image, 0, 3 + image]


def test_prompts_with_images_in_one_program(engine: lm.Engine, monkeypatch: pytest.MonkeyPatch):
    prompts = [
        prompt(engine, "<|image|>?", FIRST),
        prompt(engine, "see <|image|>!", SECOND),
        prompt(engine, "a text alone"),
    ]
    alone = [_answers(engine, [one])[0][0] for one in prompts]
    ran, started = list[int](), ModelRunner._started
    as_on_a_gpu(monkeypatch)

    def noted(runner: ModelRunner, spec: Any, values: Any) -> Any:
        ran.append(spec.prompts)
        return started(runner, spec, values)

    monkeypatch.setattr(ModelRunner, "_started", noted)
    assert [tokens for tokens, _ in _answers(engine, prompts)] == alone
    assert max(ran) == 3


def _answers(engine: lm.Engine, prompts: list[list[int]]) -> list[tuple[list[int], int]]:
    scheduler = engine.new_scheduler(len(prompts))
    active = [scheduler.join(Request(ids, 6, SamplingParams())) for ids in prompts]
    while any(one.finish_reason is None for one in active):
        scheduler.step()
    return [(one.tokens, one.reused) for one in active]


def test_places_are_equal_by_content(engine: lm.Engine):
    first, again, other = (prompt(engine, "<|image|>?", f) for f in (FIRST, FIRST, SECOND))
    assert first == again != other
    places = [token for token in first if isinstance(token, SoftToken)]
    assert len(set(places)) == len(places)
    assert max(places) < 0


def test_a_run_of_several_images(engine: lm.Engine, monkeypatch: pytest.MonkeyPatch):
    encoder = engine.images
    assert encoder is not None
    files = [file_of(picture(20, 20, seed)) for seed in range(20, 31)]
    runs = list[int]()
    monkeypatch.setattr(encoder, "_runs_at_once", 1)
    monkeypatch.setattr(encoder, "_most_bytes", sys.maxsize)
    model = encoder._model
    run = model.embeddings
    monkeypatch.setattr(model, "embeddings", lambda some: runs.append(len(some)) or run(some))
    images = [encoder.read(data) for data in files]
    wanted = [rows(engine, data) for data in files]
    encoder.encode(images)
    assert runs == [8, 2, 1]
    for image, expected in zip(images, wanted, strict=True):
        np.testing.assert_allclose(image.embeddings, np.stack(expected), rtol=1e-5, atol=1e-5)
    encoder.encode([encoder.read(data) for data in files])
    assert runs == [8, 2, 1]  # they are known


@pytest.mark.parametrize(("count", "most_bytes", "sizes"), [(8, None, [4, 4]), (4, 1, [1] * 4)])
def test_a_cpu_has_several_runs_at_once(
    engine: lm.Engine,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    most_bytes: int | None,
    sizes: list[int],
):
    encoder = engine.images
    assert encoder is not None
    run, both, runs = encoder._model.embeddings, threading.Barrier(2), list[tuple[int, int]]()

    def together(some: Any, threads: int) -> Any:
        runs.append((len(some), threads))
        both.wait(60)
        return run(some, threads)

    monkeypatch.setattr(encoder, "_runs_at_once", 2)
    if most_bytes is not None:
        monkeypatch.setattr(encoder, "_most_bytes", most_bytes)
    monkeypatch.setattr(encoder._model, "embeddings", together)
    monkeypatch.setattr(processor, "thread_count", lambda: 5)
    files = [file_of(picture(20, 20, seed)) for seed in range(60, 60 + count)]
    images = [encoder.read(data) for data in files]
    encoder._known.clear()
    encoder.encode(images)
    assert runs == [(size, 2) for size in sizes]
    monkeypatch.undo()
    for image, data in zip(images, files, strict=True):
        expected = np.stack(rows(engine, data))
        np.testing.assert_allclose(image.embeddings, expected, rtol=1e-5, atol=1e-5)


def test_a_run_that_is_left_over_takes_all_threads(
    engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
):
    encoder, seen = engine.images, list[int | None]()
    assert encoder is not None
    run = encoder._model.embeddings

    def noted(some: Any, threads: int | None = None) -> Any:
        seen.append(threads)
        return run(some, threads)

    monkeypatch.setattr(encoder, "_runs_at_once", 2)
    monkeypatch.setattr(encoder, "_most_bytes", 1)
    monkeypatch.setattr(encoder._model, "embeddings", noted)
    monkeypatch.setattr(processor, "thread_count", lambda: 2)
    files = [file_of(picture(20, 20, seed)) for seed in range(70, 73)]
    encoder.encode([encoder.read(data) for data in files])
    assert seen == [1, 1, None]


@pytest.mark.usefixtures("built")
def test_a_cpu_runs_an_encoder_without_xlas_runtime(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calls, "_seconds", lambda _: 0.0)  # whatever takes less time
    encoder = ImageEncoder(open_bundle(transformer_bundle()), {"platform": "cpu"}, ":nocache")
    image = tensors_of(np.asarray(picture(30, 20)), encoder.graph)
    (first,), *others = (encoder._model.embeddings([image]) for _ in range(4))
    program, _ = encoder._model.program(ContentSpec(image.key))
    assert program._direct is not None
    assert program._direct.is_ready
    for (rows,) in [*others, encoder._model.embeddings([image], threads=1)]:
        np.testing.assert_array_equal(rows, first)
    encoder.close()


def test_runs_are_smaller_while_their_programs_are_compiled(tmp_path: Path):
    with opened(tmp_path, vision_bundle(), vision_backend=CPU) as engine:
        encoder = engine.images
        assert encoder is not None
        encoder._runs_at_once, encoder._most_bytes = 1, sys.maxsize
        files = [file_of(picture(20, 20, seed)) for seed in range(20, 26)]
        one, several = encoder.works(of_several=False), encoder.works(of_several=True)
        assert (len(one), len(several)) == (3, 6)  # two steps and an end; 2, 4 and 8 images
        for work in (*one, several[3]):  # of the second step
            work()
        model, runs = encoder._model, list[int]()
        run = model.embeddings
        model.embeddings = lambda some: runs.append(len(some)) or run(some)  # type: ignore[method-assign]
        encoder.encode([encoder.read(data) for data in files])
        assert runs == [2, 2, 2]
        several[4]()
        encoder.encode([encoder.read(file_of(picture(20, 20, seed))) for seed in range(30, 36)])
        assert runs[3:] == [4, 2]


def test_threads_wait_for_one_run(engine: lm.Engine, monkeypatch: pytest.MonkeyPatch):
    encoder = engine.images
    assert encoder is not None
    images = [encoder.read(file_of(picture(20, 20, seed))) for seed in range(40, 49)]
    model, runs = encoder._model, list[int]()
    run, is_running, may_end = model.embeddings, threading.Event(), threading.Event()

    def slow(some: Any) -> Any:
        runs.append(len(some))
        is_running.set()
        assert may_end.wait(60)
        return run(some)

    monkeypatch.setattr(model, "embeddings", slow)
    monkeypatch.setattr(encoder, "_runs_at_once", 1)
    monkeypatch.setattr(encoder, "_most_bytes", sys.maxsize)
    threads = [threading.Thread(target=encoder.encode, args=([image],)) for image in images]
    threads[0].start()
    assert is_running.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(encoder._waiting) < 8:
        pass
    may_end.set()
    for thread in threads:
        thread.join()
    assert runs == [1, 8]
    assert all(image.embeddings is not None for image in images)


def test_gemma3_writes_blank_lines_around_an_image(tmp_path: Path):
    template = "{% for p in messages[-1].content %}{{ p.text or '<image_soft_token>' }}{% endfor %}"
    content = vision_bundle(
        encoder=pixel_encoder(), edit=gemma3, without=["end_of_vision"], template=template
    )
    with opened(tmp_path, content, vision_backend=CPU) as engine:
        image = encoded(engine, FIRST)
        assert len(image.embeddings) == 4
        wanted = [BOS, *ids("a\n\n"), START, *image.embeddings, *ids("\n\nb")]
        answer = text_of(engine, answer_by_numpy(wanted, 8))
        assert said(engine, "a", Content.ImageBytes(FIRST), "b") == answer


def test_lfm2_has_patches_of_one_size_and_an_end_of_tokens(tmp_path: Path):
    template = "{% for p in messages[-1].content %}{{ p.text or '<image>' }}{% endfor %}"
    content = vision_bundle(
        encoder=square_encoder(), edit=lfm2, without=["end_of_vision"], template=template
    )
    image = (resized(decoding.pixels_of(FIRST), SIDE, SIDE) / np.float32(255) - 0.5) / 0.5
    patches = [
        image[y : y + PATCH, x : x + PATCH].ravel()
        for y in range(0, SIDE, PATCH)
        for x in range(0, SIDE, PATCH)
    ]
    features = _runner(square_encoder(), "vision_12")(images=np.float32(patches)[None])
    wanted = _runner(adapter((4,)), "vision_adapter_4")(soft_tokens=features["features"])
    with opened(tmp_path, content, vision_backend=CPU) as engine:
        found = encoded(engine, FIRST).embeddings
        np.testing.assert_allclose(found, wanted["mm_embedding"][0], rtol=1e-5, atol=1e-5)
        end = SPECIAL.index("<|im_end|>")
        prompt = [BOS, *ids("a"), START, *found, end, *ids("b")]
        answer = text_of(engine, answer_by_numpy(prompt, 8))
        assert said(engine, "a", Content.ImageBytes(FIRST), "b") == answer


def test_an_encoder_without_an_adapter(tmp_path: Path):
    content = vision_bundle(encoder=whole_encoder(), without=["vision_adapter"])
    with opened(tmp_path, content, vision_backend=CPU) as engine:
        assert engine.images is not None
        image = tensors_of(decoding.pixels_of(FIRST), engine.images.graph)
        assert image.positions is not None
        assert (image.places, image.positions[-1].tolist()) == (6, [-1, -1])  # of 3 x 2 patches
        patches = scaled(image.pixels, engine.images.graph.form)
        rows = _runner(whole_encoder(), "vision_9")(
            images=patches[None], positions_xy=image.positions[None]
        )["features"][0, :6]
        end = _runner(end_of_vision(), "eoi")()["eoi_embedding"][0]
        prompt = [BOS, *ids("<user>"), START, *rows, *end, *ids("?:")]
        assert said(engine, Content.ImageBytes(FIRST), "?") == text_of(
            engine, answer_by_numpy(prompt, 8)
        )
    with pytest.raises(ModelError, match=r"vision_adapter: expected a signature .*, got none"):
        opened(
            tmp_path,
            vision_bundle(encoder=whole_encoder(8), without=["vision_adapter"]),
            vision_backend=CPU,
        )


def test_patches_of_another_image(tmp_path: Path):
    def other(m: Any) -> None:
        lfm2(m)
        m.llm_model_type.lfm2.image_tensor_width = 14

    content = vision_bundle(encoder=square_encoder(), edit=other, without=["end_of_vision"])
    with pytest.raises(ModelError, match=r"positions_xy .* or of 14 x 12 pixels, got"):
        opened(tmp_path, content, vision_backend=CPU)


@pytest.mark.parametrize("part", ["vision_encoder", "end_of_vision"])
def test_a_bundle_that_lacks_a_part(tmp_path: Path, part: str):
    with pytest.raises(OptionError, match=f"takes no images: it lacks {part}$"):
        opened(tmp_path, vision_bundle(without=[part]), vision_backend=CPU)


def test_a_bundle_of_texts(tmp_path: Path):
    with pytest.raises(OptionError, match=r"it lacks vision_encoder$"):
        opened(tmp_path, language_bundle(), vision_backend=CPU)


FAMILIES = LlmModelType.DESCRIPTOR.oneofs_by_name["model_type"].fields


@pytest.mark.parametrize("name", sorted({f.name for f in FAMILIES}.difference(IMAGE_FAMILIES)))
def test_other_families(tmp_path: Path, name: str):
    def declared(m: Any) -> None:
        getattr(m.llm_model_type, name).SetInParent()

    expected = f"vision_backend: .* of the family gemma3, gemma3n, gemma4 or lfm2, got {name}$"
    with pytest.raises(OptionError, match=expected):
        opened(tmp_path, vision_bundle(edit=declared), vision_backend=CPU)


def test_an_adapter_of_another_encoder(tmp_path: Path):
    with pytest.raises(ModelError, match=r"vision_adapter: expected a signature that takes"):
        opened(tmp_path, vision_bundle(encoder=patch_encoder((5,))), vision_backend=CPU)


def test_an_engine_that_was_opened_without_images(tmp_path: Path):
    with opened(tmp_path, vision_bundle()) as engine:
        with pytest.raises(OptionError, match="takes no images: open it with vision_backend="):
            said(engine, Content.ImageBytes(FIRST), "?")
        assert said(engine, "what is it?")


REFUSED = {
    "webp": (file_of(picture(8, 8), "WEBP"), "expected a file of the format PNG, JPEG, BMP"),
    "tiff": (file_of(picture(8, 8), "TIFF"), "expected a file of the format PNG"),
    "sound": (b"RIFF\x24\0\0\0WAVEfmt ", "expected a file of the format PNG"),
    "text": (b"hello", "expected a file of the format PNG"),
    "nothing": (b"", "expected a file of the format PNG"),
    "cut": (file_of(picture(80, 80))[:900], "the image is damaged: "),
    "a cut jpeg": (file_of(picture(80, 80), "JPEG")[:900], "the image is damaged: "),
    "too many bytes": (bytes(decoding.MOST_BYTES + 1), "expected at most 33554432 bytes, got 33"),
    "too many pixels": (
        file_of(picture(1, 1).resize((8192, 4097)), "PNG"),
        "expected at most 33554432 pixels, got 8192 x 4097",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_images_that_are_refused(engine: lm.Engine, name: str):
    data, problem = REFUSED[name]
    with pytest.raises(GenerationError, match=f"^image 2 of the message: .*{problem}"):
        said(engine, Content.ImageBytes(FIRST), Content.ImageBytes(data), "?")


MESSAGES = {
    "a missing file": ({"path": "/missing.png"}, "/missing.png: No such file"),
    "a folder": ({"path": "/"}, "/: Is a directory"),
    "no file": ({}, "expected a path, or a blob in base64, got neither"),
    "no base64": ({"blob": "%"}, "expected a blob in base64"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_that_are_refused(engine: lm.Engine, name: str):
    part, problem = MESSAGES[name]
    with (
        engine.create_conversation() as conversation,
        pytest.raises(GenerationError, match=problem),
    ):
        conversation.send_message({"role": "user", "content": [{"type": "image", **part}]})


def test_placeholders_in_texts(engine: lm.Engine):
    with pytest.raises(GenerationError, match=r"1 times <start_of_image> or .*, got 2"):
        said(engine, Content.ImageBytes(FIRST), "what is <|image|>?")


def test_a_prompt_that_ends_with_an_image(engine: lm.Engine):
    with pytest.raises(GenerationError, match="expected a text after the last image"):
        engine.new_scheduler(1).join(
            Request(prompt(engine, "<|image|>", FIRST), 4, SamplingParams())
        )


def test_plain_negative_ids_are_no_places(engine: lm.Engine):
    with pytest.raises(GenerationError, match="expected token ids below 261, got -1"):
        engine.generate([[BOS, -1, 7]])


def test_the_most_images_of_a_message(tmp_path: Path):
    with opened(tmp_path, vision_bundle(), vision_backend=CPU, max_num_images=1) as engine:
        assert engine.max_num_images == 1
        assert said(engine, Content.ImageBytes(FIRST), "?")
        with pytest.raises(GenerationError, match=r"at most 1 images in a message .*, got 2"):
            said(engine, Content.ImageBytes(FIRST), Content.ImageBytes(FIRST), "?")
    with pytest.raises(OptionError, match="max_num_images: expected at least 0, got -1"):
        opened(tmp_path, vision_bundle(), max_num_images=-1)


def test_an_image_that_is_too_long_is_not_encoded(
    engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
):
    assert engine.images is not None
    monkeypatch.setattr(engine.images, "encode", lambda _: pytest.fail("it is encoded"))
    with pytest.raises(GenerationError, match="expected at most 127 tokens"):
        said(engine, *[Content.ImageBytes(file_of(picture(6, 6)))] * 14, "?")
