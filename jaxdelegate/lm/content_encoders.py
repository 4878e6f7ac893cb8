"""The encoders of images and sounds of a bundle."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.lm.audio.sound_encoder import SoundEncoder
from jaxdelegate.lm.configs import Backend, with_backend
from jaxdelegate.lm.contents.prompt_contents import PromptContents
from jaxdelegate.lm.vision.image_encoder import ImageEncoder


def content_encoders(
    bundle: Bundle,
    options: Mapping[str, Any],
    cache_dir: str | None,
    tokenize: Callable[[str], list[int]],
    *,
    sees: Backend | None,
    hears: Backend | None,
) -> PromptContents:
    """What encodes images and sounds where `sees` and `hears` say; None: nothing does.

    Args:
        bundle: that has the encoders.
        options: of JaxDelegate.
        cache_dir: see `Engine`.
        tokenize: makes tokens of a text.
        sees: where images are encoded.
        hears: where sounds are.

    Raises:
        ModelError: a part is not an encoder.
        OptionError: the bundle lacks a part, or its family has none here.
    """
    found = [
        kind(bundle, with_backend(options, backend), cache_dir)
        for kind, backend in ((ImageEncoder, sees), (SoundEncoder, hears))
        if backend is not None
    ]
    return PromptContents(found, tokenize)
