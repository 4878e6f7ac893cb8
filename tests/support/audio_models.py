"""A tiny audio encoder with random weights, bundles that hear, and files of sounds."""

import functools
import io
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import soundfile

from jaxdelegate.op_lowering.options import ReducerOptions
from jaxdelegate.testing import ModelBuilder
from tests.support.language_models import Net
from tests.support.vision_models import _random, _runner, vision_bundle

FRAMES, BINS, PLACES, FEATURES, HIDDEN = 16, 128, 4, 8, 16
VISION = ("vision_encoder", "vision_adapter", "end_of_vision")


@functools.cache
def audio_encoder(*, has_state: bool = False) -> bytes:
    """`src_inputs` [1, 16, 128], `mask` [1, 1, 16]; `features` [1, 4, 8], `mask` [1, 4].

    A place is the mean of four frames, of which those without a sound are zero.
    """
    builder = ModelBuilder("audio encoder")
    net = Net(builder)
    spectra = builder.input((1, FRAMES, BINS), np.float32, "src_inputs")
    mask = builder.input((1, 1, FRAMES), np.bool_, "mask")
    there = net("CAST", [mask], (1, 1, FRAMES))
    x = net.dense(spectra, _random(5, FEATURES, BINS) / 16, (1, FRAMES, FEATURES))
    rows = net("RESHAPE", [there, net.integers(1, FRAMES, 1)], (1, FRAMES, 1))
    x = net("MUL", [x, rows], (1, FRAMES, FEATURES))
    x = net("RESHAPE", [x, net.integers(1, PLACES, 4, FEATURES)], (1, PLACES, 4, FEATURES))
    x = net("MEAN", [x, net.integers(2)], (1, PLACES, FEATURES), ReducerOptions())
    y = net("RESHAPE", [there, net.integers(1, PLACES, 4)], (1, PLACES, 4))
    y = net("MEAN", [y, net.integers(2)], (1, PLACES), ReducerOptions())
    zero = builder.constant(np.zeros(1, np.float32))
    y = net("GREATER", [y, zero], (1, PLACES), dtype=np.bool_)
    builder.outputs(x, y)
    inputs = {"src_inputs": spectra, "prev_mask" if has_state else "mask": mask}
    builder.signature("audio_4", inputs, {"features": x, "mask": y}, 0)
    return builder.build()


@functools.cache
def audio_adapter() -> bytes:
    """`features` [1, 4, 8], `mask` [1, 4]; `features` [1, 4, 16], zero where the mask is false."""
    builder = ModelBuilder("audio adapter")
    net = Net(builder)
    x = builder.input((1, PLACES, FEATURES), np.float32, "features")
    mask = builder.input((1, PLACES), np.bool_, "mask")
    y = net.dense(x, _random(6, HIDDEN, FEATURES), (1, PLACES, HIDDEN))
    there = net("CAST", [mask], (1, PLACES))
    there = net("RESHAPE", [there, net.integers(1, PLACES, 1)], (1, PLACES, 1))
    y = net("MUL", [y, there], (1, PLACES, HIDDEN))
    builder.outputs(y)
    builder.signature("audio_adapter_4", {"features": x, "mask": mask}, {"features": y}, 0)
    return builder.build()


@functools.cache
def end_of_audio() -> bytes:
    """A signature without inputs: `eoa_embedding` [1, 1, 16]."""
    builder = ModelBuilder("end of audio")
    net, rows = Net(builder), builder.constant(_random(7, 2, HIDDEN))
    y = net("GATHER", [rows, net.integers(1)], (1, HIDDEN))
    y = net("RESHAPE", [y, net.integers(1, 1, HIDDEN)], (1, 1, HIDDEN))
    builder.outputs(y)
    builder.signature("eoa", {}, {"eoa_embedding": y}, 0)
    return builder.build()


def gemma4(m: Any) -> None:
    m.llm_model_type.gemma4.start_of_audio_token.token_str = "<|im_start|>"
    m.llm_model_type.gemma4.start_of_image_token.token_str = "<|im_end|>"


def sound_bundle(
    *,
    sees: bool = False,
    without: Sequence[str] = (),
    encoder: bytes | None = None,
    edit: Any = gemma4,
    capacity: int = 128,
) -> bytes:
    """A bundle that hears, `without` some parts; it may see, too."""
    more = {
        "tf_lite_audio_encoder_hw": encoder or audio_encoder(),
        "tf_lite_audio_adapter": audio_adapter(),
        "tf_lite_end_of_audio": end_of_audio(),
    }
    without = without if sees else (*without, *VISION)
    return vision_bundle(edit=edit, without=without, more=more, capacity=capacity)


def rows_by_numpy(spectra: np.ndarray) -> np.ndarray:
    """float32 [places + 1, 16]: a sound's embeddings and its end, by numpy kernels."""
    rows = []
    for begin in range(0, len(spectra), FRAMES):
        part = spectra[begin : begin + FRAMES]
        padded = np.pad(part, ((0, FRAMES - len(part)), (0, 0)))[None]
        there = (np.arange(FRAMES) < len(part))[None, None]
        encoded = _runner(audio_encoder(), "audio_4")(src_inputs=padded, mask=there)
        found = _runner(audio_adapter(), "audio_adapter_4")(**encoded)["features"][0]
        rows.append(found[: -(-len(part) // 4)])
    return np.concatenate([*rows, _runner(end_of_audio(), "eoa")()["eoa_embedding"][0]])


def tone(frames: int, rate: int = 16000, channels: int = 1, seed: int = 0) -> np.ndarray:
    """float64 [frames, channels]: two tones with noise, softer in later channels."""
    time = np.arange(frames) / rate
    x = 0.3 * np.sin(2 * np.pi * 440 * time) + 0.2 * np.sin(2 * np.pi * (1200 + 50 * seed) * time)
    x += 0.02 * np.random.default_rng(seed).normal(size=frames)
    return np.stack([x * (1 - 0.3 * n) for n in range(channels)], axis=-1)


def file_of(samples: np.ndarray, rate: int = 16000, kind: str = "WAV", bits: str = "16") -> bytes:
    """`bits`: of values, or another name of a soundfile's subtype."""
    subtype = {"8": "PCM_U8", "float": "FLOAT", "double": "DOUBLE"}.get(bits, f"PCM_{bits}")
    written = io.BytesIO()
    options = {} if kind == "MP3" else {"subtype": bits if bits.isupper() else subtype}
    soundfile.write(written, samples, rate, format=kind, **options)
    return written.getvalue()


def chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    """A part of a WAV file, which may declare another size than it has."""
    return name + struct.pack("<I", len(content) if size is None else size) + content


def header(
    kind: int = 1, channels: int = 1, rate: int = 16000, bits: int = 16, block: int | None = None
) -> bytes:
    """The header of a WAV file's samples."""
    block = channels * bits // 8 if block is None else block
    rates = rate & 0xFFFFFFFF, (rate * block) & 0xFFFFFFFF
    return chunk(b"fmt ", struct.pack("<HHIIHH", kind, channels, *rates, block, bits))


def wave(*chunks: bytes) -> bytes:
    """A WAV file of these parts."""
    whole = b"".join(chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(whole)) + b"WAVE" + whole
