"""Gradients of real networks, by their inputs and by all weights, against differences of values."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.compile.compiler import Compiler
from tests.support.combinations import one_of
from tests.support.networks import small_classifier

MODELS = Path(__file__).parents[3] / "shared" / "models"
SMALL = [
    "networks/kws_ref_model_float32",
    "networks/pretrainedResnet",
    "networks/model_ToyCar",
    "networks/trained_lstm",
    "networks/model_1",
    "networks/dilated_conv",
    "zoo/bilstm_tagger",
    "networks/movie_review",
    "litert/norm",
    "litert/l2_norm_composite",
    "litert/attn_vec_einsum",
]
LARGE = [
    "networks/face_blendshapes",
    "networks/vww_96_float",
    "zoo/lstm_text_classifier",
    "networks/model_quant_1",
    "zoo/unet_128_dynrange",
    "networks/mobilenet_v1_0.25_224_1_default_1",
    "zoo/posenet_mnv1_050_353x257",
    "zoo/unet_128",
    "zoo/deeplabv3_mnv2_aspp_257",
    "networks/image_segmenter__deeplabv3",
    "networks/face_landmark",
    "networks/face_detection_front",
    "networks/hourglass_model__model",
    "networks/style_transfer_f16_384",
]
QUANTIZED = [
    "zoo/lstm_text_classifier_dynrange",  # the rows of its embedding are on a grid
    "networks/model_ToyCar_quant_fullint",
]
LARGE_QUANTIZED = [
    "networks/soundstream_encoder",
    "networks/face_landmark_192_full_integer_quant",
]
# Parameters of a head whose only result, on noise, is at the end of its grid: "no face".
SATURATED = {"networks/face_landmark_192_full_integer_quant": 13}
STEPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4)  # of the loss, by which it is to change
COARSE = (1, 0.3, 0.1, 0.03, 0.01)  # far beyond those of grids
NEAR = 0.02  # of a slope: between kinks, float32 leaves some thousandths


def content_of(name: str) -> bytes:
    path = MODELS / f"{name}.tflite"
    if not path.exists():
        pytest.skip(f"the real model {name} is not here")
    return path.read_bytes()


@dataclasses.dataclass(frozen=True, eq=False)
class Loss:
    """A random sum of a network's float outputs, of its parameters and float inputs."""

    value: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    at: dict[str, Any]

    @classmethod
    def of(cls, content: bytes) -> "Loss":
        model = jd.load(content)
        apply, params = model.function()
        main, random = model.graph.subgraphs[0], np.random.default_rng(0)
        inputs = [drawn(main.tensors[i], random) for i in main.inputs]
        floats = {str(i): x for i, x in enumerate(inputs) if x.dtype == np.float32}
        trained = {name: p for name, p in params.items() if p.dtype == np.float32}

        def value(at: dict[str, Any]) -> Any:
            given = [at["inputs"].get(str(i), x) for i, x in enumerate(inputs)]
            results = apply({**params, **at["params"]}, *given)
            asked = np.random.default_rng(1)
            terms = [
                jnp.vdot(asked.normal(size=y.shape).astype(np.float32), y)
                for y in results
                if y.dtype == np.float32
            ]
            return sum(terms[1:], terms[0])

        return cls(jax.jit(value), jax.jit(jax.grad(value)), {"params": trained, "inputs": floats})

    def ratio(self, slope: Any, part: str, *, along: bool, steps: Sequence[float] = STEPS) -> float:
        """Differences over the slope along the gradient, or along a random direction near it.

        Of several steps that whose difference is the most like its neighbor's: longer ones meet
        kinks, shorter ones rounding.
        """
        direction = {
            **jax.tree.map(np.zeros_like, self.at),
            part: self._direction(slope[part], part, along=along),
        }
        want = sum(
            float(np.vdot(g.astype(np.float64), d))
            for g, d in zip(
                *map(jax.tree.leaves, (jax.tree.map(np.asarray, slope), direction)), strict=True
            )
        )
        unit = (abs(float(self.value(self.at))) + 1) / abs(want)
        found = np.array([self._difference(direction, step * unit) for step in steps])
        best = np.argmin(np.abs(np.diff(found)))
        return float(found[best : best + 2].mean() / want)

    def _direction(self, slope: Any, part: str, *, along: bool) -> Any:
        random = np.random.default_rng(2)

        def one(g: Any, x: Any) -> np.ndarray:
            g, size = np.asarray(g, np.float64), np.sqrt(np.mean(np.square(x))) + 1e-3
            steepest = g * np.sqrt(g.size) / (np.linalg.norm(g) + 1e-30)
            near = steepest * random.uniform(0, 2, g.shape) + 0.1 * random.normal(size=g.shape)
            return size * (steepest if along else near)

        return jax.tree.map(one, slope, self.at[part])

    def _difference(self, direction: Any, step: float) -> float:
        def at(step: float) -> float:
            moved = jax.tree.map(lambda x, d: np.float32(x + step * d), self.at, direction)
            return float(self.value(moved))

        return (at(step) - at(-step)) / (2 * step)


def drawn(tensor: Any, random: np.random.Generator) -> np.ndarray:
    """An input; open dimensions are small."""
    shape = [
        n if n > 0 else 1 if i == 0 else 32
        for i, n in enumerate(tensor.shape_signature or tensor.shape)
    ]
    if tensor.dtype.kind == "f":
        return random.uniform(-1, 1, shape).astype(tensor.dtype)
    return random.integers(0, 100, shape).astype(tensor.dtype)


def faults(content: bytes, name: str) -> Iterator[str]:
    loss = Loss.of(content)
    slope = loss.slope(loss.at)
    if not all(np.isfinite(g).all() for g in jax.tree.leaves(slope)):
        yield "a slope is not finite"
        return
    idle = [k for k, g in slope["params"].items() if not np.any(np.asarray(g))]
    for part in ("params", "inputs"):
        for along in (True, False):
            if slope[part]:
                ratio = loss.ratio(slope, part, along=along)
                print(f"{name}: by {part}, {'steepest' if along else 'near it'}: {ratio:.5f}")
                if not abs(ratio - 1) < NEAR:
                    yield f"by {part}: differences are {ratio:.4f} of the slope"
    print(
        f"{name}: {len(idle)} of {len(slope['params'])} parameters have the slope zero: {idle[:4]}"
    )


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The form for devices other than a CPU."""
    if request.param == "cpu":
        return
    own = Compiler.context.func  # type: ignore[attr-defined]
    neutral = property(lambda self: dataclasses.replace(own(self), platform="tpu"))
    monkeypatch.setattr(Compiler, "context", neutral)


def test_a_small_network() -> None:
    assert not list(faults(small_classifier(), "small_classifier"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "elsewhere", ["cpu", pytest.param("tpu", marks=pytest.mark.exhaustive)], indirect=True
)
@pytest.mark.parametrize("name", one_of(3, SMALL))
@pytest.mark.usefixtures("elsewhere")
def test_small_networks(name: str) -> None:
    assert not list(faults(content_of(name), name))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LARGE)
def test_large_networks(name: str) -> None:
    assert not list(faults(content_of(name), name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*QUANTIZED, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in LARGE_QUANTIZED)]
)
def test_quantized_networks_can_be_trained(name: str) -> None:
    """The loss changes along the gradient, by steps longer than those of the grids."""
    loss = Loss.of(content_of(name))
    slope = loss.slope(loss.at)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(slope))
    still = [k for k, g in slope["params"].items() if not np.any(np.asarray(g))]
    assert len(still) == SATURATED.get(name, 0), still
    ratio = loss.ratio(slope, "params", along=True, steps=COARSE)
    print(f"{name}: by params, steepest: {ratio:.3f}")
    assert 0.5 < ratio < 2
