"""Files of sounds: samples, and what is refused."""

import io
import struct

import numpy as np
import pytest
import soundfile

from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.lm.audio import decoding
from jaxdelegate.lm.audio.decoding import samples_of, seconds_of
from jaxdelegate.lm.audio.mp3_file import with_all_frames
from tests.support.audio_models import chunk, file_of, header, tone, wave

SOUND = tone(1000)
STEPS = {"8": 2 / 255, "16": 2**-15, "24": 2**-23, "32": 2**-24, "float": 2**-24, "double": 2**-24}


@pytest.mark.parametrize("bits", STEPS)
@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
def test_values_of_each_width(bits: str, kind: str):
    found = samples_of(file_of(SOUND, kind=kind, bits=bits))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, SOUND[:, 0], rtol=0, atol=STEPS[bits])


def test_values_as_miniaudio_scales_them():
    bytes_ = bytes([0, 128, 255])
    found = samples_of(wave(header(bits=8), chunk(b"data", bytes_)))
    np.testing.assert_allclose(found, [-1, 1 / 255, 1], atol=1e-7)
    whole = struct.pack("<3h", -(2**15), 0, 2**15 - 1)
    found = samples_of(wave(header(), chunk(b"data", whole)))
    assert found.tolist() == [-1, 0, 1 - 2**-15]
    wide = bytes([0, 0, 0x80, 0xFF, 0xFF, 0x7F, 1, 0, 0])
    found = samples_of(wave(header(bits=24), chunk(b"data", wide)))
    assert found.tolist() == [-1, 1 - 2**-23, 2**-23]


def test_channels_are_averaged():
    sound = tone(500, channels=3)
    found = samples_of(file_of(sound, bits="float"))
    np.testing.assert_allclose(found, sound.mean(axis=1), atol=1e-6)


def test_flac():
    sound = tone(16000) * 0.8
    np.testing.assert_allclose(samples_of(file_of(sound, kind="FLAC")), sound[:, 0], atol=2**-15)


DELAY = 576 + 529  # samples of LAME and of a decoder


@pytest.mark.parametrize("before", [b"", b"ID3\4\0\0" + bytes([0, 0, 1, 3]) + bytes(131)])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("rate", "frame"), [(16000, 576), (44100, 1152), (8000, 576)])
def test_an_mp3_has_all_of_its_frames(rate: int, frame: int, channels: int, before: bytes):
    """LiteRT-LM plays the frame of a tag, and the silence of encoder and decoder."""
    data = before + file_of(tone(5000, rate, channels) * 0.8, rate, "MP3")
    sound, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    assert len(sound) == 5000  # as the tag says
    found = decoding._opened(data).values()
    assert len(found) == -(-(DELAY + 5000) // frame) * frame + frame
    assert not found[:frame].any()
    begin = frame + DELAY
    np.testing.assert_allclose(found[begin : begin + 5000], sound, rtol=0, atol=2**-16 + 1e-9)
    assert (found * 2**15 == np.rint(found * 2**15)).all()
    assert seconds_of(data) * rate == len(found) - 529


@pytest.mark.parametrize("field", range(4))
def test_tags_of_mp3_files_without_a_field(field: int):
    data = file_of(tone(5000) * 0.8, kind="MP3")
    wanted, tag = decoding._opened(data).values(), data.index(b"Xing")
    sizes = 4, 4, 100, 4  # frames, bytes, table, quality
    begin, end = tag + 8 + sum(sizes[:field]), tag + 8 + sum(sizes) + 36
    fields = data[tag + 4 : tag + 7] + bytes([data[tag + 7] & ~(1 << field)])
    rest = data[tag + 8 : begin] + data[begin + sizes[field] : end] + bytes(sizes[field])
    changed = data[: tag + 4] + fields + rest + data[end:]
    assert (with_all_frames(changed) is None) == (field == 0)
    if field:
        np.testing.assert_array_equal(decoding._opened(changed).values(), wanted)


def test_an_mp3_without_a_tag():
    data = file_of(tone(5000) * 0.8, kind="MP3")
    assert with_all_frames(data[:4] + bytes(len(data) - 4)) is None
    for header_ in (b"", b"ID3", b"\xff\xfb", b"\xff\xff\xff\xff", b"\xff\xf3\x04\xc4"):
        assert with_all_frames(header_ + bytes(8)) is None


def test_a_wave_file_of_compressed_samples():
    np.testing.assert_allclose(
        samples_of(file_of(SOUND, bits="ULAW")), SOUND[:, 0], rtol=0.07, atol=1e-3
    )


def test_other_chunks_and_an_unknown_size():
    content = np.arange(-50, 50, dtype="<i2").tobytes()
    wanted = np.arange(-50, 50) / 2**15
    odd = chunk(b"LIST", b"abc") + b"\0"
    for data in (
        wave(odd, header(), odd, chunk(b"data", content), odd),
        wave(header(), chunk(b"data", content, 2**32 - 1)),
        wave(header(), chunk(b"data", content + b"\1"), b"\0"),  # half a value is left out
    ):
        assert samples_of(data).tolist() == wanted.tolist()
        assert seconds_of(data) == 100 / 16000


GOOD = chunk(b"data", bytes(200))
REFUSED = {
    "empty": (b"", "expected a file of the format WAV, FLAC or MP3"),
    "text": (b"hello" * 100, "expected a file of the format WAV, FLAC or MP3"),
    "ogg": (file_of(SOUND, kind="OGG", bits="VORBIS"), "expected a file of the format"),
    "aiff": (file_of(SOUND, kind="AIFF"), "expected a file of the format"),
    "no header": (wave(GOOD), "it has no header"),
    "no samples": (wave(header()), "it has no samples"),
    "no values": (wave(header(), chunk(b"data", b"")), "expected samples, got none"),
    "header ends": (wave(header())[:30], "its header ends too early"),
    "short header": (wave(chunk(b"fmt ", b"\1\0\1\0"), GOOD), "its header ends too early"),
    "samples end": (wave(header(), GOOD)[:100], "it ends after 56 of 200 bytes"),
    "size lies": (wave(header(), chunk(b"data", bytes(20), 2**31)), "it ends after 20 of"),
    "no channels": (wave(header(channels=0), GOOD), "0 channels of 16 bits"),
    "many channels": (wave(header(channels=255), GOOD), "expected 1 to 254 channels, got 255"),
    "frames differ": (wave(header(block=3), GOOD), "1 channels of 16 bits in frames of 3 bytes"),
    "no bits": (wave(header(bits=0), GOOD), "of 0 bits"),
    "odd bits": (wave(header(bits=12, block=2), GOOD), "of 12 bits"),
    "half floats": (wave(header(kind=3), GOOD), "of 16 bits"),
    "rate 0": (wave(header(rate=0), GOOD), "expected 1 to 384000 samples in a second, got 0"),
    "rate 2^31": (wave(header(rate=2**31), GOOD), "got 2147483648"),
    "NaN": (
        wave(header(3, bits=32), chunk(b"data", np.full(9, np.nan, "<f4").tobytes())),
        "expected finite samples",
    ),
    "infinite": (
        wave(header(3, bits=64), chunk(b"data", np.full(9, 1e300, "<f8").tobytes())),
        "expected finite samples",
    ),
    "ten hours": (wave(header(bits=8, rate=1), chunk(b"data", bytes(36000))), "got 36000.0"),
    "many chunks": (wave(*[chunk(b"junk", b"")] * 300, header(), GOOD), "it has no header"),
    "endless chunk": (wave(chunk(b"junk", b"", 2**32 - 1), header(), GOOD), "it has no header"),
    "flac ends": (file_of(SOUND, kind="FLAC")[:60], "the sound is damaged"),
    "flac head": (b"fLaC" + bytes(100), "the sound is damaged"),
    "mp3 noise": (b"\xff\xfb" + bytes(range(256)) * 8, "the sound is damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str):
    data, problem = REFUSED[name]
    with pytest.raises(GenerationError, match="the sound") as raised:
        samples_of(data)
    assert problem in str(raised.value)


def test_limits_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch):
    compressed = file_of(tone(16000), kind="FLAC")
    for name, value, problem in (
        ("MOST_BYTES", 100, "expected at most 100 bytes"),
        ("MOST_SECONDS", 0.5, "expected at most 0.5 seconds, got 1.0"),
        ("MOST_VALUES", 15999, "expected at most 15999 samples of all channels, got 16000"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(decoding, name, value)
            patched.setattr(decoding._Encoded, "values", lambda _: pytest.fail("it is decoded"))
            with pytest.raises(GenerationError, match=problem):
                samples_of(compressed)


def test_soundfile_is_optional(monkeypatch: pytest.MonkeyPatch):
    compressed, plain = file_of(SOUND, kind="FLAC"), file_of(SOUND)
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    assert len(samples_of(plain)) == 1000
    with pytest.raises(OptionError, match="soundfile"):
        samples_of(compressed)
