"""The exit codes of inference_diff on real models: right, rounded, reduced and planted errors."""

import dataclasses
import itertools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.tools.main import main

pytestmark = pytest.mark.slow
SHARED = Path(__file__).parents[3] / "shared"
REFERENCES = ("numpy", "litert_ref", "litert_builtin", "litert_xnnpack")
OURS = ((), ("--interpreter=litert",))
XNNPACK = ("--use_xnnpack",)
RIGHT, WRONG = 0, 2


# Stock LiteRT has no kernel of this custom operator, and BUILTIN_REF none of ELU.
NOT_BY_LITERT = {"selfie_segmenter": REFERENCES[1:], "unet_128_dynrange": ("litert_ref",)}
NOT_BY_LITERT["o_mixed"] = NOT_BY_LITERT["unet_128_dynrange"]


@dataclasses.dataclass(frozen=True)
class Case:
    """A file, flags, and for a planted error its operator and what it makes of the result."""

    file: str
    flags: tuple[str, ...] = ()
    operator: str = ""
    plant: Callable[[Any], Any] | None = None

    def __str__(self) -> str:
        return "-".join((Path(self.file).stem, *self.flags, self.operator))

    @property
    def references(self) -> list[str]:
        absent = NOT_BY_LITERT.get(Path(self.file).stem, ())
        return [name for name in REFERENCES if name not in absent]

    @property
    def delegates(self) -> tuple[tuple[str, ...], ...]:
        """XNNPACK has neither our options nor our planted errors, nor custom operators."""
        is_ours = self.flags or self.plant or len(self.references) == 1
        return OURS if is_ours else (*OURS, XNNPACK)


def times(factor: float) -> Callable[[Any], Any]:
    return lambda y: (y.astype(np.float32) * np.float32(factor)).astype(y.dtype)


def plus(steps: int) -> Callable[[Any], Any]:
    return lambda y: y + y.dtype.type(steps)


def transposed(y: Any) -> Any:
    return y.swapaxes(1, 2)


def rolled(y: Any) -> Any:
    return np.roll(y, 1, -1) if isinstance(y, np.ndarray) else y[..., ::-1]


INTEGER, FLOATS = ("--jax_quant_mode=integer",), ("--jax_quant_mode=float_view",)
REDUCED = ("--jax_compute_dtype=bfloat16",)
NETWORKS, ZOO = "models/networks/", "models/zoo/"
V1, V1_INT8 = (
    f"{NETWORKS}mobilenet_v1_0.25_224_1_default_1.tflite",
    f"{NETWORKS}mobilenet_v1_0.25_224_quant.tflite",
)
VWW, VWW_INT8 = f"{NETWORKS}vww_96_float.tflite", f"{NETWORKS}vww_96_int8.tflite"
KWS, LSTM = f"{NETWORKS}kws_ref_model.tflite", f"{NETWORKS}keras_lstm_mnist_ptq.tflite"
SSD = f"{NETWORKS}coco_ssd_mobilenet_v1_1.0_quant_2018_06_29_no_metadata.tflite"
FLOAT_SSD = f"{ZOO}ssd_mnv2_300_postprocess.tflite"
UNET = f"{ZOO}unet_128_dynrange.tflite"
MIXED = "cases/jax_and_serving_users/o_mixed.tflite"

CASES = (
    *((Case(file), RIGHT) for file in (V1, V1_INT8, VWW, VWW_INT8, KWS, LSTM, SSD, FLOAT_SSD)),
    *((Case(file), RIGHT) for file in (UNET, MIXED, f"{NETWORKS}selfie_segmenter.tflite")),
    *((Case(file), RIGHT) for file in (f"{NETWORKS}face_landmark.tflite",)),
    *((Case(file, FLOATS), RIGHT) for file in (V1_INT8, VWW_INT8, KWS, LSTM, SSD, UNET, MIXED)),
    *((Case(file, INTEGER), RIGHT) for file in (UNET, MIXED)),
    *((Case(file, REDUCED), RIGHT) for file in (V1, VWW, FLOAT_SSD)),
    (Case(VWW, ("--jax_compute_dtype=float16",)), RIGHT),
    (Case(V1, (), "CONV_2D", times(1.01)), WRONG),
    (Case(VWW, REDUCED, "DEPTHWISE_CONV_2D", times(1.2)), WRONG),
    (Case(VWW_INT8, (), "CONV_2D", plus(3)), WRONG),
    (Case(V1_INT8, FLOATS, "DEPTHWISE_CONV_2D", times(1.1)), WRONG),
    (Case(KWS, FLOATS, "FULLY_CONNECTED", rolled), WRONG),
    (Case(SSD, (), "CONCATENATION", plus(9)), WRONG),
    (Case(FLOAT_SSD, (), "TFLite_Detection_PostProcess", rolled), WRONG),
    (Case(UNET, (), "CONV_2D", transposed), WRONG),
    (Case(MIXED, (), "CONV_2D", times(1.05)), WRONG),
    (Case(LSTM, FLOATS, "UNIDIRECTIONAL_SEQUENCE_LSTM", times(1.2)), WRONG),
)


SOME_CASES = [
    pytest.param(*case, marks=pytest.mark.exhaustive if number % 5 else ())
    for number, case in enumerate(CASES)
]


@pytest.mark.parametrize(("case", "code"), SOME_CASES, ids=str)
def test_the_exit_code(
    case: Case, code: int, break_rule: Any, capsys: Any, is_exhaustive: bool
) -> None:
    """By one delegate and reference, another one for each case; --exhaustive: by all of them."""
    path = SHARED / case.file
    if not path.exists():
        pytest.skip(f"needs {path}")
    if case.plant is not None:
        break_rule(case.operator, case.plant)
    pairs = list(itertools.product(case.references, case.delegates))
    if not is_exhaustive:
        pairs = [pairs[zlib.crc32(str(case).encode()) % len(pairs)]]
    for reference, delegate in pairs:
        flags = [f"--graph={path}", "--num_runs=2", f"--reference={reference}", *delegate]
        found = main(["inference_diff", *flags, *case.flags])
        assert found == code, (reference, delegate, *capsys.readouterr())
