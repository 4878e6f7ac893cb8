"""Arguments of `litert_lm` that ask for what this engine cannot do."""

from collections.abc import Mapping
from typing import Any

from jaxdelegate.errors import OptionError

_NAMES = frozenset(
    (
        "vision_backend",
        "audio_backend",
    )
)
# How LiteRT-LM computes.
WITHOUT_EFFECT = frozenset(
    (
        "enable_benchmark",
        "enable_ynnpack",
        "use_ringbuffers_local_attention",
    )
)

# What else `litert_lm` exports, and why it is not here.
CLASSES = {
    "LiteRtLmBackendType": "it has the numbers of LiteRT-LM's C library; use Backend",
    "LiteRtLmNpuBrand": "NPUs are not supported",
}


def missing(name: str) -> str:
    """Why `jaxdelegate.lm` does not have a name."""
    what = CLASSES.get(name)
    text = f"module 'jaxdelegate.lm' has no attribute {name!r}"
    return text if what is None else f"{text}: {what}"


def refuse(method: str, arguments: Mapping[str, Any]) -> None:
    """An OptionError or TypeError for arguments that are not supported, unless they ask nothing."""
    for name, value in arguments.items():
        if name not in _NAMES | WITHOUT_EFFECT:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        if name in _NAMES and value:
            raise OptionError(f"{method}: {name} is not supported, got {value!r}; leave it out")
