"""The inputs of a signature that say where its tokens are, and which of them each one sees.

Source: runtime/executor/litert_compiled_model_executor_utils.cc of LiteRT-LM has their names,
runtime/proto/executor_metadata.proto what a bundle declares; `masks` has their values.
"""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

POSITIONS = ("input_pos", "positions")
MASKS = ("mask", "attn_mask")
LOCAL_MASKS = ("local_mask", "attn_mask_local", "local_attn_mask")
PARAMS = "param_tensor"
# LiteRT-LM's negative number of a mask: sums with logits stay finite.
MASKED = {
    np.dtype(np.float32): -0.7 * float(np.finfo(np.float32).max),
    np.dtype(np.float16): -45824.0,
}
MASK_TYPES = (*MASKED, np.dtype(np.bool_))
# How the names of inputs begin that LiteRT-LM's NPU executor alone provides (runtime/executor/npu).
_NPU = ("mask_local", "mask_global", "pos_emb_")


@dataclasses.dataclass(frozen=True)
class Places:
    """The names of these inputs in a signature; None: it has no such input.

    Attributes:
        positions: of the places of tokens; 0 after the last one.
        mask: of which places each token sees.
        local_mask: the same for layers that see only the last tokens.
        params: of the first place, and twice the place after the last one.
    """

    positions: str | None
    mask: str | None
    local_mask: str | None
    params: str | None

    @classmethod
    def among(cls, inputs: Collection[str]) -> "Places":
        """The names among the inputs of a signature."""
        names = POSITIONS, MASKS, LOCAL_MASKS, (PARAMS,)
        return cls(*(first(group, inputs) for group in names))

    @property
    def names(self) -> set[str | None]:
        """All names."""
        return {self.positions, self.mask, self.local_mask, self.params}


@dataclasses.dataclass(frozen=True)
class Attention:
    """Which tokens each one sees, as a bundle's ExecutorMetadata declares it.

    Attributes:
        is_causal: itself and those before it; False: all tokens of its step, too.
        is_locally_causal: the same for local masks.
        window: how many of the last tokens local masks show; None: all.
    """

    is_causal: bool = True
    is_locally_causal: bool = True
    window: int | None = None


def declared_attention(metadata: Any) -> Attention:
    """The attention that a message ExecutorMetadata declares.

    Masks for images are causal masks here, since tokens are of texts only.
    """
    settings = metadata.llm_executor_metadata.attention_mask_settings
    types = settings.DESCRIPTOR.fields_by_name["attention_mask_type"].enum_type.values_by_name
    both_ways = types["ATTENTION_MASK_TYPE_BIDIRECTIONAL"].number
    local = settings.local_attention_mask_type or settings.attention_mask_type
    return Attention(
        settings.attention_mask_type != both_ways,
        local != both_ways,
        settings.sliding_window_size or None,
    )


def first(names: Iterable[str], given: Collection[str]) -> str | None:
    """The first of some names that is given."""
    return next((name for name in names if name in given), None)


def why_unknown(names: Collection[str]) -> str:
    """Why inputs cannot be provided."""
    listed = ", ".join(names)
    if any(name.startswith(_NPU) for name in names):
        return f"{listed}: the model was exported for NPUs; use an export for CPUs or GPUs"
    return listed
