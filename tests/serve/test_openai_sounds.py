"""Sounds in chats over HTTP: answers equal the engine's; errors, limits, many at once."""

import base64
import concurrent.futures
import queue
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from jaxdelegate import lm
from jaxdelegate.lm.audio.sound_encoder import SoundEncoder
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.openai.files import size_without_files
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from tests.lm.audio.test_decoding import REFUSED
from tests.serve.test_openai import CHAT, Gate, Served
from tests.serve.test_openai_images import RESPONSES, asked, shown, text, user, wanted
from tests.support.audio_models import (
    audio_adapter,
    chunk,
    file_of,
    header,
    sound_bundle,
    tone,
    wave,
)
from tests.support.vision_models import file_of as image_of
from tests.support.vision_models import picture

FIRST, SECOND = file_of(tone(1000)), file_of(tone(4000, seed=1))
IMAGE = image_of(picture(30, 20))
SOUND = lm.Content.AudioBytes


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, lines = tmp_path_factory.mktemp("sounds"), queue.Queue[str]()
    path, other = folder / "tiny.litertlm", folder / "sees.litertlm"
    path.write_bytes(sound_bundle(sees=True))
    other.write_bytes(sound_bundle(sees=True, encoder=audio_adapter()))  # no encoder
    settings = ServeSettings(max_batch_size=4, warm=())
    server = Server({"tiny": path, "sees": other}, settings, Limits(), port=0, say=lines.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    port = int(lines.get(timeout=60).rpartition(":")[2])
    for _ in range(2):
        assert "is ready" in lines.get(timeout=200)
    cpu = lm.Backend.CPU()
    with lm.Engine(path, cpu, vision_backend=cpu, audio_backend=cpu) as engine:
        yield Served(port, engine, Gate(), server)
    server.stop()
    thread.join(60)
    assert not thread.is_alive()


def heard(data: bytes, kind: str = "wav") -> dict[str, Any]:
    sound = {"data": base64.b64encode(data).decode(), "format": kind}
    return {"type": "input_audio", "input_audio": sound}


def test_a_sound_and_an_image_in_a_chat(served: Served):
    answer, count = wanted(served, "what", SOUND(FIRST), lm.Content.ImageBytes(IMAGE), " is it?")
    found = asked(served, text("what"), heard(FIRST), shown(IMAGE), text(" is it?")).json
    assert found["choices"][0]["message"]["content"] == answer
    assert found["usage"]["prompt_tokens"] == count


@pytest.mark.parametrize("kind", ["flac", "mp3"])
def test_compressed_sounds(served: Served, kind: str):
    data = file_of(tone(3000) * 0.5, kind=kind.upper())
    answer, _ = wanted(served, SOUND(data), "?")
    found = asked(served, heard(data, kind), text("?")).json
    assert found["choices"][0]["message"]["content"] == answer


def test_the_client_of_openai(served: Served):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none")
    answer, _ = wanted(served, SOUND(FIRST), SOUND(SECOND), "?")
    options: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}
    messages: Any = user(heard(FIRST), heard(SECOND), text("?"))
    whole = client.chat.completions.create(messages=messages, **options)
    assert whole.choices[0].message.content == answer
    stream = client.chat.completions.create(messages=messages, stream=True, **options)
    assert "".join(part.choices[0].delta.content or "" for part in stream) == answer
    parts: Any = [heard(FIRST), heard(SECOND), {"type": "input_text", "text": "?"}]
    response = client.responses.create(
        model="tiny", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=8
    )
    assert response.output_text == answer


def test_equal_sounds_share_their_prefix(served: Served):
    data = file_of(tone(2000, seed=9))
    first, again = (asked(served, heard(data), text("one?")).json["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] < 9  # the text before the sound
    assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1


def test_requests_at_once_are_encoded_together(served: Served, monkeypatch: pytest.MonkeyPatch):
    files = [file_of(tone(2000, seed=seed)) for seed in range(50, 66)]
    answers = [wanted(served, SOUND(data), "?")[0] for data in files]
    at_once, encode = list[int](), SoundEncoder._embeddings

    def counted(self: SoundEncoder, runs: Any) -> Any:
        at_once.append(sum(map(len, runs)))
        time.sleep(0.2)  # the others wait meanwhile
        return encode(self, runs)

    monkeypatch.setattr(SoundEncoder, "_embeddings", counted)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = [*pool.map(lambda data: asked(served, heard(data), text("?")), files)]
    assert [each.json["choices"][0]["message"]["content"] for each in found] == answers
    assert sum(at_once) == 16
    assert max(at_once) >= 4


@pytest.mark.parametrize("name", REFUSED)
def test_damaged_sounds(served: Served, name: str):
    data, problem = REFUSED[name]
    found = asked(served, text("?"), heard(data))
    assert found.status == 400
    assert problem in found.error["message"]
    assert found.error["param"] == "messages[0].content[1].input_audio.data"


def test_other_requests_that_are_refused(served: Served):
    sound, data = heard(FIRST), base64.b64encode(FIRST).decode()
    half = heard(wave(header(bits=8, rate=10), chunk(b"data", bytes(7000))))  # 700 seconds
    for parts, fields, problem in (
        ([sound, text("?")], {"model": "sees"}, "'sees' takes no sounds"),
        ([sound, text("?")], {"prompt_logprobs": 0}, "expected only without images and sounds"),
        ([text("<|audio|>"), sound, text("?")], {}, "got 2: the chat template must write one"),
        ([sound] * 33, {}, "expected at most 32 sounds in a request, got 33"),
        ([half, half], {}, "expected at most 1200 seconds of sounds in a request, got 1400.0"),
        ([half, text("?")], {}, "expected at most 127 tokens by the model's context length"),
        ([{"type": "input_audio"}], {}, "input_audio: expected an object"),
        ([{"type": "input_audio", "input_audio": {"data": data}}], {}, "expected one of wav, mp3"),
        ([heard(FIRST, "pcm16")], {}, "expected one of wav, mp3"),
        ([{"type": "input_audio", "input_audio": {"format": "wav"}}], {}, "expected a string"),
        (
            [{"type": "input_audio", "input_audio": {"format": "wav", "data": "a%"}}],
            {},
            "expected a file in base64",
        ),
    ):
        found = asked(served, *parts, **fields)
        assert (found.status, problem in found.error["message"]) == (400, True), found.body
    assert asked(served, shown(IMAGE), text("?"), model="sees").status == 200
    found = served.call(CHAT, {"messages": [{"role": "system", "content": [sound]}]})
    assert "sounds only in the user's" in found.error["message"]
    found = served.call("/tokenize", {"messages": user(sound)})
    assert (found.status, found.error["message"]) == (400, "messages: expected only texts here")
    assert served.call(RESPONSES, {"input": [{"role": "system", "content": [sound]}]}).status == 400


def hostile(number: int) -> bytes:
    """A file with damaged, cut, repeated or inserted bytes."""
    chance = random.Random(number)
    kind = chance.choice(["WAV", "WAV", "WAVEX", "FLAC", "MP3"])
    data = bytearray(file_of(tone(1500, seed=number % 5) * 0.5, kind=kind))
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(min(len(data), chance.choice([60, 5000])))
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


def test_many_hostile_sounds(served: Served):
    """Each is answered or refused, and others do not wait for them."""
    stop, slowest = threading.Event(), [0.0]

    def others() -> None:
        while not stop.is_set():
            began = time.monotonic()
            assert asked(served, text("hello?"), max_tokens=1).status == 200
            slowest[0] = max(slowest[0], time.monotonic() - began)

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        watching = pool.submit(others)
        files = map(hostile, range(200))
        found = [*pool.map(lambda d: asked(served, heard(d), text("?"), max_tokens=1), files)]
        stop.set()
        watching.result(60)
    counts = {status: sum(f.status == status for f in found) for status in (200, 400)}
    assert sum(counts.values()) == 200
    assert counts[400] > 50
    assert slowest[0] < 2


def test_a_sound_larger_than_other_bodies(served: Served):
    data = file_of(tone(60), rate=16000)
    whole = wave(chunk(b"LIST", bytes(5 << 20)), data[12:])
    assert asked(served, heard(whole), text("?")).status == 200
    assert asked(served, text("input_audio" + "x" * len(whole))).status == 413
    body = b'{"type": "input_audio", "data": "abcd"}'
    assert size_without_files(body) == len(body) - len('"data": "abcd"')
    assert size_without_files(b'{"data": "abcd"}') == len('{"data": "abcd"}')
