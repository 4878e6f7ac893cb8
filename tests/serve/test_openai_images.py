"""Images in chats over HTTP: answers equal the engine's; errors, limits, many at once."""

import base64
import concurrent.futures
import contextlib
import queue
import random
import re
import resource
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import openai
import pytest

from jaxdelegate import lm
from jaxdelegate.lm.vision.image_encoder import ImageEncoder
from jaxdelegate.lm.vision.vision_model import VisionModel
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.openai import files
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from tests.serve.test_openai import CHAT, Gate, Served
from tests.support.vision_models import file_of, patch_encoder, picture, vision_bundle

RESPONSES = "/v1/responses"
FIRST, SECOND = file_of(picture(30, 20)), file_of(picture(9, 40, seed=1))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, lines = tmp_path_factory.mktemp("images"), queue.Queue[str]()
    path, other = folder / "tiny.litertlm", folder / "reads.litertlm"
    path.write_bytes(vision_bundle())
    other.write_bytes(vision_bundle(encoder=patch_encoder((5,))))  # its adapter does not fit
    settings = ServeSettings(max_batch_size=4, warm=["images"])
    server = Server({"tiny": path, "reads": other}, settings, Limits(), port=0, say=lines.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    port = int(lines.get(timeout=60).rpartition(":")[2])
    said = [lines.get(timeout=600) for _ in range(3)]
    assert sum("is ready" in line for line in said) == 2
    assert sum("'tiny' is warm after" in line and ": images " in line for line in said) == 1
    cpu = lm.Backend.CPU()
    with lm.Engine(path, cpu, vision_backend=cpu) as engine:
        yield Served(port, engine, Gate(), server)
    server.stop()
    thread.join(60)
    assert not thread.is_alive()


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def shown(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data), **more}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def asked(served: Served, *parts: Any, **fields: Any) -> Any:
    body = {"messages": user(*parts), "temperature": 0, "max_tokens": 8, **fields}
    return served.call(CHAT, body)


def wanted(served: Served, *parts: Any, count: int = 8) -> tuple[str, int]:
    """The engine's answer, and how many tokens the prompt has."""
    with served.engine.create_conversation(max_output_tokens=count) as conversation:
        answer = str(conversation.send_message(lm.Contents.of(*parts)))
        return answer, conversation.get_benchmark_info().last_prefill_token_count


IMAGE = lm.Content.ImageBytes


def test_an_image_in_a_chat(served: Served):
    answer, count = wanted(served, "what", IMAGE(FIRST), " is it?")
    found = asked(served, text("what"), shown(FIRST, detail="high"), text(" is it?")).json
    assert found["choices"][0]["message"]["content"] == answer
    assert found["usage"]["prompt_tokens"] == count


def test_a_warm_server_compiles_nothing_for_images(served: Served, monkeypatch: pytest.MonkeyPatch):
    refused = mock.Mock(side_effect=RuntimeError("an image needs a program that is not compiled"))
    monkeypatch.setattr(VisionModel, "_load_or_compile", refused)
    files = [file_of(picture(20, 10, seed)) for seed in range(80, 87)]
    assert asked(served, *map(shown, files), text("?")).status == 200
    assert asked(served, shown(file_of(picture(3, 3, seed=80))), text("?")).status == 200


def test_the_client_of_openai(served: Served):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none")
    answer, _ = wanted(served, IMAGE(FIRST), IMAGE(SECOND), "?")
    options: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}
    messages: Any = user(shown(FIRST), shown(SECOND), text("?"))
    whole = client.chat.completions.create(messages=messages, **options)
    assert whole.choices[0].message.content == answer
    stream = client.chat.completions.create(messages=messages, stream=True, **options)
    assert "".join(part.choices[0].delta.content or "" for part in stream) == answer
    parts: Any = [
        {"type": "input_image", "image_url": url(FIRST), "detail": "auto"},
        {"type": "input_image", "image_url": url(SECOND)},
        {"type": "input_text", "text": "?"},
    ]
    response = client.responses.create(
        model="tiny", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=8
    )
    assert response.output_text == answer


def test_the_code_of_the_page(
    served: Served,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    photo = file_of(picture(40, 30), "JPEG")
    Path("photo.jpg").write_bytes(photo)
    text = (Path(__file__).parents[2] / "docs" / "lm_serving.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "image_url" in block)
    code = block.replace("localhost:8000", f"127.0.0.1:{served.port}")
    exec(code.replace('model="chat"', 'model="tiny"'), names := dict[str, Any]())
    names["client"].close()
    assert (
        capsys.readouterr().out == wanted(served, IMAGE(photo), "What is it?", count=128)[0] + "\n"
    )


def test_equal_images_share_their_prefix(served: Served):
    data = file_of(picture(11, 11, seed=7))
    first, again = (asked(served, shown(data), text("one?")).json["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] < 9  # the text before the image
    assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1
    other = asked(served, shown(file_of(picture(11, 11, seed=8))), text("one?")).json["usage"]
    assert other["prompt_tokens_details"]["cached_tokens"] < 9


def test_requests_at_once_are_encoded_together(served: Served, monkeypatch: pytest.MonkeyPatch):
    files = [file_of(picture(20, 10, seed)) for seed in range(50, 66)]
    answers = [wanted(served, IMAGE(data), "?")[0] for data in files]
    at_once, encode = list[int](), ImageEncoder._embeddings

    def counted(self: ImageEncoder, runs: Any) -> Any:
        at_once.append(sum(map(len, runs)))
        time.sleep(0.2)  # the others wait meanwhile
        return encode(self, runs)

    monkeypatch.setattr(ImageEncoder, "_embeddings", counted)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = [*pool.map(lambda data: asked(served, shown(data), text("?")), files)]
    said = [each.json["choices"][0]["message"]["content"] for each in found]
    assert said == answers
    assert sum(at_once) == 16
    assert max(at_once) >= 4


WRONG = {
    "http": ({"url": "http://127.0.0.1/a.png"}, "expected a data URL"),
    "https": ({"url": "https://example.com/a.png"}, "no such files (allowed_media_domains)"),
    "a path": ({"url": "/etc/passwd"}, "expected a data URL"),
    "file": ({"url": "file:///etc/passwd"}, "expected a data URL"),
    "no base64": ({"url": "data:image/png,abc"}, "expected a data URL"),
    "damaged base64": ({"url": "data:image/png;base64,a%"}, "got a damaged one"),
    "no url": ({}, "expected a string"),
    "a number": ({"url": 3}, "expected a string"),
    "detail": ({"url": url(FIRST), "detail": "much"}, "detail: expected"),
    "webp": ({"url": url(file_of(picture(4, 4), "WEBP"), "webp")}, "expected a file of the format"),
    "nothing": ({"url": "data:image/png;base64,"}, "expected a file of the format"),
    "cut": ({"url": url(file_of(picture(80, 80))[:900])}, "the image is damaged"),
    "a bomb": (
        {"url": url(file_of(picture(1, 1).resize((8192, 4097))))},
        "expected at most 33554432 pixels, got 8192 x 4097",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_images_that_are_refused(served: Served, name: str):
    value, problem = WRONG[name]
    found = asked(served, text("?"), {"type": "image_url", "image_url": value})
    assert found.status == 400
    assert problem in found.error["message"]
    assert found.error["param"].startswith("messages[0].content[1]")


def test_other_requests_that_are_refused(served: Served):
    half = shown(file_of(picture(1, 1).resize((4096, 4097))))
    image = shown(FIRST)
    for parts, fields, problem in (
        ([image, text("?")], {"model": "reads"}, "'reads' takes no images"),
        ([image, text("?")], {"prompt_logprobs": 0}, "expected only without images and sounds"),
        ([text("<|image|>"), image], {}, "got 2: the chat template must write one"),
        ([image] * 33, {}, "expected at most 32 images in a request, got 33"),
        ([image] * 12, {}, "expected at most 127 tokens by the model's context length"),
        ([half, half], {}, "expected at most 33554432 pixels in a request"),
    ):
        found = asked(served, *parts, **fields)
        assert (found.status, problem in found.error["message"]) == (400, True), found.body
    assert asked(served, text("?"), model="reads").status == 200
    found = served.call(CHAT, {"messages": [{"role": "system", "content": [image]}]})
    assert "images only in the user's" in found.error["message"]
    found = served.call("/tokenize", {"messages": user(image)})
    assert (found.status, found.error["message"]) == (400, "messages: expected only texts here")
    item = {"role": "assistant", "content": [{"type": "input_image", "image_url": url(FIRST)}]}
    assert served.call(RESPONSES, {"input": [item]}).status == 400


def hostile(number: int) -> bytes:
    """A file with damaged, cut, repeated or inserted bytes."""
    chance = random.Random(number)
    kind = chance.choice(["PNG", "JPEG", "BMP", "GIF", "PPM"])
    data = bytearray(file_of(picture(40, 30, number % 5), kind))
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                del data[place + 1 :]
            case 2:
                data[place:place] = chance.randbytes(chance.randint(1, 40))
            case _:
                data[place : place + 4] = chance.choice([b"\xff" * 4, bytes(4), b"\x7f" * 4])
    return bytes(data)


def chunk(kind: bytes, data: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + check


def frames(kind: str) -> bytes:
    some = [picture(40, 40, seed) for seed in range(200)]
    return file_of(some[0], kind, save_all=True, append_images=some[1:])


def with_scans() -> bytes:
    """A progressive JPEG whose last scan comes ten thousand times."""
    image = file_of(picture(1, 1).resize((5000, 6000)), "JPEG", progressive=True)
    return image[:-2] + image[image.rfind(b"\xff\xda") : -2] * 10_000 + image[-2:]


def expensive() -> dict[str, tuple[bytes, int, str]]:
    """Files that take long, if nothing refuses them; the status, and a part of the message."""
    png, jpeg = file_of(picture(2, 2)), file_of(picture(2, 2), "JPEG")
    gif = file_of(picture(2, 2), "GIF")
    place = 13 + 3 * 2 ** (1 + (gif[10] & 7))  # after the header and its colors
    late, binary = "takes longer than 3 s", "of binary values of 8 or 16 bits each"
    return {
        "30 million pixels": (file_of(picture(1, 1).resize((6000, 5000))), 200, ""),
        "scans": (with_scans(), 400, "expected a JPEG of at most 64 scans"),
        "chunks": (png[:33] + chunk(b"abcd", b"") * 700_000 + png[33:], 400, late),
        "segments": (jpeg[:2] + b"\xff\xe9\0\2" * 2_000_000 + jpeg[2:], 400, late),
        "extensions": (gif[:place] + b"!\xfe\0" * 4_000_000 + gif[place:], 400, late),
        "frames of a GIF": (frames("GIF"), 200, ""),
        "frames of a PNG": (frames("PNG"), 200, ""),
        "numbers": (b"P3 1000 1000 255 " + b"1 " * 3_000_000, 400, binary),
        "a rare depth": (b"P6 1000 1000 200 " + bytes(3_000_000), 400, binary),
        "a bomb": (
            png[:8] + chunk(b"IHDR", struct.pack(">II", 1 << 30, 1 << 30) + png[24:29]) + png[33:],
            400,
            "expected at most 33554432 pixels, got 1073741824 x 1073741824",
        ),
    }


@contextlib.contextmanager
def others(served: Served) -> Iterator[None]:
    """Others ask texts meanwhile, and none waits for longer than two seconds."""
    stop, waited = threading.Event(), list[float]()

    def ask() -> None:
        while not stop.is_set():
            began = time.monotonic()
            assert asked(served, text("hello?"), max_tokens=1).status == 200
            waited.append(time.monotonic() - began)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        watching = pool.submit(ask)
        try:
            yield
        finally:
            stop.set()
            watching.result(60)
    assert max(waited) < 2


def peak() -> int:
    """The most memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_many_hostile_images(served: Served):
    """Each is answered or refused, and others do not wait for them."""
    with others(served), concurrent.futures.ThreadPoolExecutor(4) as pool:
        files = map(hostile, range(500))
        found = [*pool.map(lambda d: asked(served, shown(d), text("?"), max_tokens=1), files)]
    counts = {status: sum(f.status == status for f in found) for status in (200, 400)}
    assert sum(counts.values()) == 500
    assert counts[400] > 125


@pytest.mark.slow
def test_images_that_take_long(served: Served):
    """They are refused after seconds, or before; memory is bounded."""
    images, before = expensive(), peak()
    with others(served):
        for name, (data, status, problem) in images.items():
            found = asked(served, shown(data), text("?"), max_tokens=1)
            assert (found.status, problem in found.body.decode()) == (status, True), name
    assert peak() - before < 1 << 30
    answer, _ = wanted(served, IMAGE(FIRST), "?")
    found = asked(served, shown(FIRST), text("?")).json
    assert found["choices"][0]["message"]["content"] == answer


def test_bodies_are_larger_by_their_images_only():
    image = f'{{"url": "{url(bytes(1 << 20))}"}}'.encode()
    assert files.size_without_files(image) == len('{"url": }')
    assert files.size_without_files(b"[]") == 2
    assert files.has_files(image)
    assert not files.has_files(b"[]")


def test_a_photo_larger_than_other_bodies(served: Served):
    data = file_of(picture(1400, 1100), "BMP")
    assert len(data) > 4 << 20
    assert asked(served, shown(data), text("?")).status == 200
    assert asked(served, text("x" * len(data))).status == 413
