"""The models that examples run without files are what their docstrings say."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate as jd
from examples.models.tones import tone_detector, tones
from jaxdelegate.testing import assert_close
from jaxdelegate.testing.running import run_once


def stock(content: bytes, x: np.ndarray) -> np.ndarray:
    kernels = OpResolverType.BUILTIN_REF
    interpreter = StockInterpreter(model_content=content, experimental_op_resolver_type=kernels)
    return run_once(interpreter, [x])[0]


@pytest.mark.litert
def test_the_tone_detector_finds_the_tone_in_noise() -> None:
    content, rate = tone_detector(bands=8), 48000
    audio = tones(seconds=24, rate=rate, bands=8).reshape(8, 1, 3 * rate)
    noise = np.random.default_rng(0).normal(0, 0.05, audio.shape)
    model = jd.load(content)
    for band, x in enumerate((0.5 * audio + noise).astype(np.float32)):
        (scores,) = model(x)
        assert scores[0, band] > 0.9
        assert np.delete(scores[0], band).max() < 0.1
    assert_close([scores], [stock(content, x)])


def test_the_tone_detector_takes_one_window() -> None:
    with pytest.raises(jd.InterpreterError, match="RESHAPE"):
        jd.load(tone_detector())(np.zeros((2, 144000), np.float32))
