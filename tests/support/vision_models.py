"""Tiny vision encoders with random weights, and bundles that see, with the parts of Gemma's."""

import functools
import io
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import ReducerOptions
from jaxdelegate.testing import ModelBuilder
from tests.support.attention_networks import vision_transformer
from tests.support.language_models import Net, embedders, language_bundle, language_model

PATCH, POOL, HIDDEN, FEATURES = 2, 3, 16, 8
COUNTS = (4, 12)  # places of the two steps of the patch encoder
SIDE = 12  # of the images that the other encoder takes
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}"
    "{{ p.text if p.type == 'text' else '<|' ~ p.type ~ '|>' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}:{% endif %}"
)


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def patch_encoder(counts: Sequence[int] = COUNTS) -> bytes:
    """Signatures vision_N: `images` [1, 9 N, 12], `positions_xy`; `features` [1, N, 8].

    A place is the mean of nine patches in a row, with their columns and rows, squared: places
    without an image are not zero.
    """
    builder, values = ModelBuilder("vision encoder"), 3 * PATCH**2
    for number, count in enumerate(counts):
        graph = builder if number == 0 else builder.subgraph(f"graph_{number}")
        net, n = Net(graph), count * POOL**2
        images = graph.input((1, n, values), np.float32, "images")
        places = graph.input((1, n, 2), np.int32, "positions_xy")
        x = net.dense(images, _random(1, FEATURES, values), (1, n, FEATURES))
        at = net("CAST", [places], (1, n, 2))
        x = net("ADD", [x, net.dense(at, _random(2, FEATURES, 2) / 8, (1, n, FEATURES))], (1, n, 8))
        x = net("RESHAPE", [x, net.integers(1, count, 9, 8)], (1, count, 9, FEATURES))
        x = net("MEAN", [x, net.integers(2)], (1, count, FEATURES), ReducerOptions())
        x = net("MUL", [x, x], (1, count, FEATURES))
        graph.outputs(x)
        inputs = {"images": images, "positions_xy": places}
        builder.signature(f"vision_{count}", inputs, {"features": x}, number)
    return builder.build()


@functools.cache
def pixel_encoder() -> bytes:
    """One signature: `images` [1, 12, 12, 3]; `features` [1, 4, 8]: of each quarter of the rows."""
    builder = ModelBuilder("vision encoder")
    net, values = Net(builder), SIDE * SIDE * 3 // 4
    images = builder.input((1, SIDE, SIDE, 3), np.float32, "images")
    rows = net("RESHAPE", [images, net.integers(1, 4, values)], (1, 4, values))
    x = net.dense(rows, _random(1, FEATURES, values) / 8, (1, 4, FEATURES))
    builder.outputs(x)
    builder.signature("vision_12", {"images": images}, {"features": x}, 0)
    return builder.build()


@functools.cache
def square_encoder() -> bytes:
    """Patches without positions, as in lfm2: `images` [1, 36, 12]; `features` [1, 4, 8]."""
    builder = ModelBuilder("vision encoder")
    net, values = Net(builder), SIDE * SIDE * 3 // 4
    images = builder.input((1, (SIDE // PATCH) ** 2, 3 * PATCH**2), np.float32, "images")
    rows = net("RESHAPE", [images, net.integers(1, 4, values)], (1, 4, values))
    x = net.dense(rows, _random(1, FEATURES, values) / 8, (1, 4, FEATURES))
    builder.outputs(x)
    builder.signature("vision_12", {"images": images}, {"features": x}, 0)
    return builder.build()


@functools.cache
def whole_encoder(hidden: int = HIDDEN) -> bytes:
    """No adapter, as in gemma4_unified: `images` [1, 9, 12]; `features` [1, 9, hidden]."""
    builder, values, shape = ModelBuilder("vision encoder"), 3 * PATCH**2, (1, 9, hidden)
    net = Net(builder)
    images = builder.input((1, 9, values), np.float32, "images")
    places = builder.input((1, 9, 2), np.int32, "positions_xy")
    x = net.dense(images, _random(1, hidden, values), shape)
    at = net.dense(net("CAST", [places], (1, 9, 2)), _random(2, hidden, 2) / 8, shape)
    x = net("ADD", [x, at], shape)
    builder.outputs(x)
    inputs = {"images": images, "positions_xy": places}
    builder.signature("vision_9", inputs, {"features": x}, 0)
    return builder.build()


@functools.cache
def adapter(counts: Sequence[int] = COUNTS, features: int = FEATURES) -> bytes:
    """Signatures vision_adapter_N: `soft_tokens` [1, N, features]; `mm_embedding` [1, N, 16]."""
    builder = ModelBuilder("vision adapter")
    for number, count in enumerate(counts):
        graph = builder if number == 0 else builder.subgraph(f"graph_{number}")
        x = graph.input((1, count, features), np.float32, "soft_tokens")
        y = Net(graph).dense(x, _random(3, HIDDEN, features), (1, count, HIDDEN))
        graph.outputs(y)
        key = f"vision_adapter_{count}"
        builder.signature(key, {"soft_tokens": x}, {"mm_embedding": y}, number)
    return builder.build()


@functools.cache
def end_of_vision() -> bytes:
    """A signature without inputs: `eoi_embedding` [1, 1, 16]."""
    builder = ModelBuilder("end of vision")
    rows = builder.constant(_random(4, 2, HIDDEN))
    y = Net(builder)("GATHER", [rows, Net(builder).integers(1)], (1, HIDDEN))
    y = Net(builder)("RESHAPE", [y, Net(builder).integers(1, 1, HIDDEN)], (1, 1, HIDDEN))
    builder.outputs(y)
    builder.signature("eoi", {}, {"eoi_embedding": y}, 0)
    return builder.build()


def gemma4(m: Any) -> None:
    m.llm_model_type.gemma4.start_of_image_token.token_str = "<|im_start|>"


def gemma3(m: Any) -> None:
    m.llm_model_type.gemma3.start_of_image_token.token_str = "<|im_start|>"


def lfm2(m: Any) -> None:
    own = m.llm_model_type.lfm2
    own.start_of_image_token.token_str = "<|im_start|>"
    own.end_of_image_token.token_str = "<|im_end|>"
    own.image_tensor_height = own.image_tensor_width = SIDE


def vision_bundle(
    *,
    encoder: bytes | None = None,
    edit: Callable[[Any], object] = gemma4,
    without: Sequence[str] = (),
    more: Mapping[str, bytes] = types.MappingProxyType({}),
    template: str = TEMPLATE,
    capacity: int = 128,
) -> bytes:
    """A bundle that sees: of the family of `edit`, `without` some parts, with `more` of them."""
    own, per_layer = embedders()
    others = {
        "tf_lite_embedder": own,
        "tf_lite_per_layer_embedder": per_layer,
        "tf_lite_vision_encoder": encoder or patch_encoder(),
        "tf_lite_vision_adapter": adapter() if encoder is None else adapter((4,)),
        "tf_lite_end_of_vision": end_of_vision(),
        **more,
    }
    return language_bundle(
        template,
        model=language_model(has_embedders=True, capacity=capacity),
        others={k: v for k, v in others.items() if k.removeprefix("tf_lite_") not in without},
        edit=edit,
    )


def transformer_bundle() -> bytes:
    """A bundle whose encoder of 14 x 14 patches is a transformer of two layers."""

    def edit(m: Any) -> None:
        own = m.llm_model_type.lfm2
        own.image_tensor_height = own.image_tensor_width = 224

    more = {"tf_lite_vision_adapter": adapter((196,), 256)}
    return vision_bundle(encoder=vision_transformer(), edit=edit, more=more)


def picture(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """Noise."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (height, width, channels) if channels > 1 else (height, width)
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8), mode
    )


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


@functools.cache
def _runner(content: bytes, key: str) -> Any:
    return jd.Interpreter(model_content=content).get_signature_runner(key)


def rows_by_numpy(patches: np.ndarray, positions: np.ndarray, count: int) -> np.ndarray:
    """float32 [count + 1, 16]: an image's embeddings and its end, by numpy kernels."""
    step = positions.shape[0] // POOL**2
    found = _runner(patch_encoder(), f"vision_{step}")(
        images=patches[None], positions_xy=positions[None]
    )
    rows = _runner(adapter(), f"vision_adapter_{step}")(soft_tokens=found["features"])
    end = _runner(end_of_vision(), "eoi")()["eoi_embedding"][0]
    return np.concatenate([rows["mm_embedding"][0, :count], end])


def answer_by_numpy(prompt: Sequence[int | np.ndarray], count: int) -> list[int]:
    """The most likely tokens after ids and rows of embeddings, a place at a time."""
    table, _ = embedders()
    look_up = _runner(table, "decode_embedder")
    run = _runner(language_model(has_embedders=True), "decode")
    state = {n: np.zeros(d["shape"], d["dtype"]) for n, d in run.get_input_details().items()}
    state["per_layer_embeddings"][:] = 0.5  # of every token
    places, answer = list(prompt), list[int]()
    for position in range(len(prompt) + count - 1):
        place = places[position]
        if isinstance(place, np.ndarray):
            state["embeddings"][:] = place
        else:
            token = np.full((1, 1), place, np.int32)
            state["embeddings"][:] = look_up(token_ids=token)["embeddings"]
        state["input_pos"][:] = position
        state["mask"][:] = -0.7 * np.finfo(np.float32).max
        state["mask"][..., : position + 1] = 0
        results = run(**state)
        state = {name: results.get(name, value) for name, value in state.items()}
        if position == len(places) - 1:
            answer.append(int(results["logits"].argmax()))
            places.append(answer[-1])
    return answer
