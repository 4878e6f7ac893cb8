"""A vision encoder as a JAX function: embeddings equal the kernels', gradients the differences."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import lm
from jaxdelegate.errors import GenerationError, OptionError
from tests.support.language_models import language_bundle
from tests.support.vision_models import (
    file_of,
    gemma3,
    picture,
    pixel_encoder,
    rows_by_numpy,
    vision_bundle,
)

FILE = file_of(picture(30, 20))


def opened(folder: Path, content: bytes) -> Any:
    path = folder / "model.litertlm"
    path.write_bytes(content)
    return jd.open_bundle(path)


def embedding(bundle: Any, image: lm.ImageInputs) -> Any:
    encode, params = jd.load(bundle.models["vision_encoder"]).function(image.encoder)
    adapt, weights = jd.load(bundle.models["vision_adapter"]).function(image.adapter)

    def rows(pixels: Any) -> Any:
        features = encode(params, {**image.inputs, "images": pixels})["features"]
        return adapt(weights, {"soft_tokens": features})["mm_embedding"][0, : image.places]

    return rows


def test_the_embedding_and_its_gradient(tmp_path: Path) -> None:
    bundle = opened(tmp_path, vision_bundle())
    image = lm.image_inputs(bundle, FILE)
    pixels, positions = image.inputs["images"], image.inputs["positions_xy"]
    rows = embedding(bundle, image)
    wanted = rows_by_numpy(pixels[0], positions[0], image.places)[:-1]
    np.testing.assert_allclose(jax.jit(rows)(pixels), wanted, rtol=1e-4, atol=1e-4)
    slopes = jax.grad(lambda pixels: jnp.sum(jnp.tanh(rows(pixels) / 100)))(pixels)
    there = positions[0, :, 0] >= 0
    assert np.all(slopes[0, ~there] == 0)
    step = np.zeros_like(pixels)
    step[0, 3, 5] = 1e-2
    ends = [float(jnp.sum(jnp.tanh(rows(p) / 100))) for p in (pixels + step, pixels - step)]
    np.testing.assert_allclose(slopes[0, 3, 5], (ends[0] - ends[1]) / 2e-2, rtol=0.02, atol=1e-4)


def test_an_encoder_of_pixels(tmp_path: Path) -> None:
    content = vision_bundle(encoder=pixel_encoder(), edit=gemma3, without=["end_of_vision"])
    image = lm.image_inputs(opened(tmp_path, content), FILE)
    assert (image.encoder, image.adapter, image.places) == ("vision_12", "vision_adapter_4", 4)
    assert [(name, a.shape) for name, a in image.inputs.items()] == [("images", (1, 12, 12, 3))]
    assert 0 <= image.inputs["images"].min() < image.inputs["images"].max() <= 1


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="expected a file of the format"):
        lm.image_inputs(opened(tmp_path, vision_bundle()), b"text")
    with pytest.raises(OptionError, match="takes no images: it lacks vision_encoder"):
        lm.image_inputs(opened(tmp_path, language_bundle()), FILE)


def test_absent_devices(tmp_path: Path) -> None:
    """The encoder and the adapter are lowered as a whole for GPUs and TPUs."""
    bundle = opened(tmp_path, vision_bundle())
    image = lm.image_inputs(bundle, FILE)
    rows = jax.jit(embedding(bundle, image))
    exported = jax.export.export(rows, platforms=["cuda", "tpu"])(image.inputs["images"])
    assert exported.platforms == ("cuda", "tpu")
    assert exported.out_avals[0].shape == (image.places, 16)
    assert "custom_call" not in exported.mlir_module()  # nothing is left to a host
