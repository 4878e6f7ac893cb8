"""The signatures of a bundle's vision encoder and adapter, and what images they take.

Source: LiteRT-LM 0.18 (runtime/executor/vision_executor_utils.cc,
vision_litert_compiled_model_executor.cc).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.function.records import Signature, TensorInfo
from jaxdelegate.lm.contents.content_program import end_signature
from jaxdelegate.lm.program_spec import Array
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.text import printable

ENCODER, ADAPTER, END = "vision_encoder", "vision_adapter", "end_of_vision"
IMAGES, POSITIONS, FEATURES = "images", "positions_xy", "features"
_INT, _FLOAT = np.dtype(np.int32), np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class ImageForm:
    """What a bundle declares about its images.

    Attributes:
        most_patches: of an image; 0: as many as the encoder takes.
        patch: the side of these patches, in pixels; 0: that of the encoder's. An encoder may take
            larger ones.
        size: the height and width of images whose patches have no positions.
        divisor: of the values of pixels, the first step of their normalization.
        mean: that is subtracted, by channel.
        deviation: by which the difference is divided.
    """

    most_patches: int = 0
    patch: int = 0
    size: tuple[int, int] = (0, 0)
    divisor: float = 255
    mean: tuple[float, ...] = (0, 0, 0)
    deviation: tuple[float, ...] = (1, 1, 1)


@dataclasses.dataclass(frozen=True)
class VisionStep:
    """A signature of the encoder, and the one of the adapter that takes its features.

    Attributes:
        key: of the encoder's signature.
        adapter: the key of the adapter's; empty: the features are embeddings.
        images: what the encoder takes: [1, height, width, 3], or patches [1, n, values].
        positions: columns and rows of patches: int32 [1, n, 2]; None: all images have one size.
        features: what it returns: [1, n, size].
        features_name: of that output.
        soft_tokens: the adapter's input.
        embeddings: the result: [1, count, size].
        embeddings_name: of that output.
    """

    key: str
    adapter: str
    images: TensorInfo
    images_name: str
    positions: TensorInfo | None
    features: TensorInfo
    features_name: str
    soft_tokens: str
    embeddings: TensorInfo
    embeddings_name: str

    @property
    def count(self) -> int:
        """The most places of an image."""
        return self.embeddings.shape[-2]

    @property
    def patches(self) -> int:
        """The most patches of an image; 0: all images have one size."""
        return 0 if self.positions is None else self.images.shape[-2]

    @property
    def patch(self) -> int:
        """The height and width of a patch, in pixels."""
        return math.isqrt(self.images.shape[-1] // 3)

    @property
    def pool(self) -> int:
        """How many patches, in each direction, become one place."""
        return math.isqrt(self.patches // self.count)


@dataclasses.dataclass(frozen=True)
class VisionGraph:
    """What a bundle's vision parts compute.

    Attributes:
        steps: for images of different sizes, the smallest first.
        end: the key of the signature whose output follows an image; None: nothing does.
        form: what the bundle declares about images.
    """

    steps: tuple[VisionStep, ...]
    end: str | None
    form: ImageForm

    @property
    def size(self) -> int:
        """How many elements an embedding has."""
        return self.steps[-1].embeddings.shape[-1]

    @property
    def most_patches(self) -> int:
        """The most patches of an image; 0: all images have one size."""
        last, form = self.steps[-1], self.form
        most = form.most_patches
        if most and last.patches and form.patch:
            most = max(most * form.patch**2 // last.patch**2, 1)
        return min(last.patches, most or last.patches)

    @property
    def input_shape(self) -> Shape:
        """[height, width, 3] of an image, or [patches, values] of the largest one."""
        return self.steps[-1].images.shape[1:]

    @property
    def encoder_keys(self) -> list[str]:
        """The encoder's signatures, the one of the smallest images first."""
        return [step.key for step in self.steps]

    @property
    def end_part(self) -> str:
        """The part of the signature `end`."""
        return END

    def keys(self, key: str) -> dict[str, str]:
        """See `ContentGraph`."""
        adapter = self.step(key).adapter
        return {"": key, ADAPTER: adapter} if adapter else {"": key}

    def arguments(self, key: str) -> list[Array]:
        """The number of places, the image, and the positions of patches, if it takes patches."""
        step = self.step(key)
        own = [((), _INT), (step.images.shape[1:], _FLOAT)]
        return own if step.positions is None else [*own, (step.positions.shape[1:], _INT)]

    def shape(self, key: str) -> Shape:
        """See `ContentGraph`."""
        return self.step(key).embeddings.shape[-2:]

    def limited(self, places: int) -> "VisionGraph":
        """For images of at most `places`. An OptionError: it does not return as many."""
        last = self.steps[-1]
        if not last.patches or not 0 < places <= last.count:
            known = f"1 to {last.count}" if last.patches else "none: all images have one size"
            raise OptionError(f"vision_tokens_per_image: expected {known}, got {places}")
        form = dataclasses.replace(self.form, most_patches=places * last.pool**2, patch=0)
        return dataclasses.replace(self, form=form)

    def step_for(self, patches: int) -> VisionStep:
        """The smallest step for an image of `patches` patches."""
        return next(step for step in self.steps if step.patches >= patches)

    def step(self, key: str) -> VisionStep:
        """The step of a signature."""
        return next(step for step in self.steps if step.key == key)


def vision_graph(
    parts: Mapping[str, Mapping[str, Signature]], source: str, form: ImageForm
) -> VisionGraph:
    """Find the steps among the signatures of the vision parts.

    Args:
        parts: signatures, by part.
        source: the bundle, for messages.
        form: what the bundle declares about images.

    Raises:
        ModelError: a signature is missing, or takes or returns something else.
    """
    steps = sorted(
        (_step(key, parts, source, form) for key in parts[ENCODER]),
        key=lambda step: step.patches,
    )
    if not steps:
        _fail(source, ENCODER, "a signature", "none")
    end = None
    if END in parts:
        end = end_signature(parts[END], steps[-1].embeddings.shape[-1], f"{source}!{END}")
    return VisionGraph(tuple(steps), end, form)


def _step(
    key: str, parts: Mapping[str, Mapping[str, Signature]], source: str, form: ImageForm
) -> VisionStep:
    signature = parts[ENCODER][key]
    inputs, outputs = dict(signature.inputs), signature.outputs
    positions = inputs.pop(POSITIONS, None)
    name = FEATURES if FEATURES in outputs else next(iter(outputs), "")
    images_name, images = next(iter(inputs.items()), ("", None))
    is_known = images is not None and len(inputs) == 1 and name
    if images is None or not (is_known and _takes_images(images, positions, form.size)):
        wanted = "[1, height, width, 3], or patches [1, n, values] with positions_xy [1, n, 2]"
        if any(form.size):
            wanted += f" or of {form.size[1]} x {form.size[0]} pixels"
        _fail(source, ENCODER, f"images {wanted}", str(signature))
    found = _adapter(name, outputs[name], parts)
    if found is None:
        got = "; ".join(map(str, parts.get(ADAPTER, {}).values()))
        _fail(source, ADAPTER, f"a signature that takes {outputs[name]}", got)
    adapter, soft_tokens, embeddings, result = found
    step = VisionStep(
        key=key,
        adapter=adapter,
        images=images,
        images_name=images_name,
        positions=positions,
        features=outputs[name],
        features_name=name,
        soft_tokens=soft_tokens,
        embeddings=result,
        embeddings_name=embeddings,
    )
    if step.patches and step.pool**2 * step.count != step.patches:
        wanted = f"a square of patches for each of {step.count} places"
        _fail(source, ENCODER, wanted, f"{step.patches} patches")
    return step


def _takes_images(images: TensorInfo, positions: TensorInfo | None, size: tuple[int, int]) -> bool:
    shape = images.shape
    if len(shape) == 4:
        return positions is None and shape[0] == 1 and shape[3] == 3
    patch = math.isqrt(shape[-1] // 3)
    if len(shape) != 3 or shape[0] != 1 or patch**2 * 3 != shape[2] or not patch:
        return False
    if positions is not None:
        return positions.shape == (*shape[:2], 2)
    return not any(n % patch for n in size) and math.prod(size) == shape[1] * patch**2


def _adapter(
    name: str, features: TensorInfo, parts: Mapping[str, Mapping[str, Signature]]
) -> tuple[str, str, str, TensorInfo] | None:
    """The key, input and output of the adapter's signature for these features.

    Without an adapter they are embeddings, if what follows an image has as many elements.
    """
    for key, signature in parts.get(ADAPTER, {}).items():
        ends = [*signature.inputs.items()], [*signature.outputs.items()]
        if [len(end) for end in ends] == [1, 1] and ends[0][0][1].shape == features.shape:
            return key, ends[0][0][0], *ends[1][0]
    sizes = {i.shape[-1:] for s in parts.get(END, {}).values() for i in s.outputs.values()}
    is_whole = ADAPTER not in parts and sizes == {features.shape[-1:]}
    return ("", "", name, features) if is_whole else None


def _fail(source: str, part: str, wanted: str, got: str) -> NoReturn:
    raise ModelError(
        f"{printable(source)}!{part}: expected {wanted}, got {printable(got) or 'none'}"
    )
