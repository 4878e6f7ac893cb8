"""LoRA adapters: files of small factors, which a model's signatures take as inputs.

Source: runtime/util/lora_util.cc of LiteRT-LM has the names of these inputs; litert-torch writes
the files (generative/layers/lora.py): models without operators, whose tensors have these names.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.function.records import TensorInfo
from jaxdelegate.lm.cache_memory import with_row
from jaxdelegate.lm.configs import LoraRankConfig
from jaxdelegate.model.records import LORA_RANK, Model, Tensor, read_model
from jaxdelegate.pjrt.client import Runtime
from jaxdelegate.text import printable

_NAME = re.compile(
    r"(?:(?:query|key|value|post)_w_prime_(?:left|right)|lora_atten_[qkvo]_[ab]_prime_weight)_\d+"
    r"|transformer\.layer_\d+\.attn\.(?:q|k|v|attn_vec_einsum)\.w_prime_(?:left|right)"
)
_SIDES = {"_left": "_right", "_right": "_left", "_a_": "_b_", "_b_": "_a_"}
_SIDE = re.compile("|".join(_SIDES))


def is_adapter_input(name: str) -> bool:
    """Whether an input of a signature is a factor of an adapter."""
    return _NAME.fullmatch(name) is not None


def rank_of(inputs: Mapping[str, TensorInfo]) -> int:
    """The rank of factors: the smallest size that all have, above 1; 0: they have none."""
    sizes = [{n for n in info.shape if n > 1} for info in inputs.values()]
    return min(set.intersection(*sizes), default=0) if sizes else 0


@dataclasses.dataclass(frozen=True, eq=False)
class Adapter:
    """The factors of a LoRA adapter.

    Attributes:
        path: of its file.
        arrays: by the name of the model's input.
    """

    path: str
    arrays: Mapping[str, np.ndarray]


def read_adapter(path: str | os.PathLike[str], inputs: Mapping[str, TensorInfo]) -> Adapter:
    """Read an adapter for a model.

    Layers or projections that the file does not have are zeros, as in LiteRT-LM.

    Args:
        path: of a `.tflite` file.
        inputs: of the model, by name.

    Raises:
        ModelError: the file is damaged, or its tensors are not those of the model.
    """
    reader = _Reader(read_model(os.fspath(path)), inputs)
    return Adapter(os.fspath(path), reader.arrays())


def rank_config(path: str, option: str) -> LoraRankConfig:
    """For an engine with this adapter, which an option names.

    Raises:
        ModelError: the file is damaged.
        OptionError: it has no factors.
    """
    rank = _declared_rank(read_model(path))
    if not rank:
        raise OptionError(f"{option}: expected a LoRA adapter, got {path!r}, which has no factors")
    return LoraRankConfig(rank)


def _declared_rank(model: Model) -> int:
    rank = model.metadata.get(LORA_RANK)
    infos = {t.name: TensorInfo(t.name, t.shape, t.dtype, None) for t in _factors(model)}
    return rank_of(infos) if rank is None else int.from_bytes(rank, "little")


def _factors(model: Model) -> list[Tensor]:
    tensors = (t for subgraph in model.subgraphs for t in subgraph.tensors)
    return [t for t in tensors if is_adapter_input(t.name)]


class _Reader:
    def __init__(self, model: Model, inputs: Mapping[str, TensorInfo]) -> None:
        self._model, self._inputs = model, inputs
        self._tensors = {t.name: t for t in _factors(model)}

    def arrays(self) -> dict[str, np.ndarray]:
        known = next(iter(self._inputs))
        if not self._tensors:
            self._fail(f"expected the tensors of a LoRA adapter, for example {known!r}, got none")
        for name in self._tensors:
            if name not in self._inputs:
                self._fail(f"expected tensors that the model takes, as {known!r}, got {name!r}")
            other = _SIDE.sub(lambda side: _SIDES[side[0]], name)
            if other not in self._tensors:
                self._fail(f"expected both factors of a product, got {name!r} without {other!r}")
        return {name: self._array(name, info) for name, info in self._inputs.items()}

    def _array(self, name: str, info: TensorInfo) -> np.ndarray:
        tensor = self._tensors.get(name)
        if tensor is None:
            return np.zeros(info.shape, info.dtype)
        return self._checked(tensor, info)

    def _checked(self, tensor: Tensor, info: TensorInfo) -> np.ndarray:
        is_same = tensor.shape == info.shape and tensor.dtype == info.dtype
        data = tensor.data if is_same else None
        if data is None:
            got = f"{tensor.dtype} {list(tensor.shape)}" + " without data" * is_same
            rank, wanted = _declared_rank(self._model), rank_of(self._inputs)
            self._fail(
                f"expected {tensor.name!r} as {info.dtype} {list(info.shape)}, got {got}: the "
                f"adapter has the rank {rank}, the engine's model {wanted}"
            )
        return data

    def _fail(self, problem: str) -> NoReturn:
        raise ModelError(f"{printable(self._model.source)}: {printable(problem)}")


class SlotAdapters:
    """Which adapter the sequence of each slot has, and their factors on the device.

    Arrays have a leading axis of slots, except for one slot. Without an adapter they are zeros.
    """

    def __init__(self, inputs: Mapping[str, TensorInfo], slots: int) -> None:
        """None has an adapter. `inputs`: of the model, by name."""
        self._inputs = inputs
        self._adapters: list[Adapter | None] = [None] * slots
        self._runtime: Runtime | None = None
        self._arrays: list[Any] = []

    def of(self, slot: int) -> Adapter | None:
        """The adapter of a slot."""
        return self._adapters[slot]

    def set(self, slot: int, adapter: Adapter | None) -> None:
        """Let the next program compute a slot's sequence with an adapter; None: without one."""
        if self._adapters[slot] is adapter:
            return
        self._adapters[slot] = adapter
        if len(self._adapters) == 1:
            self._runtime = None
        if self._runtime is None:
            return
        runtime, rows = self._runtime, self._factors(adapter)
        pairs = zip(self._arrays, rows, strict=True)
        self._arrays = [with_row(runtime, array, slot, row) for array, row in pairs]

    def on(self, runtime: Runtime) -> list[Any]:
        """The arrays where a program runs, in the order of the inputs."""
        if self._inputs and self._runtime is not runtime:
            factors = [self._factors(adapter) for adapter in self._adapters]
            stacked: Iterable[np.ndarray] = (
                factors[0] if len(factors) == 1 else map(np.stack, zip(*factors, strict=True))
            )
            self._arrays, self._runtime = [*map(runtime.put, stacked)], runtime
        return self._arrays

    def _factors(self, adapter: Adapter | None) -> list[np.ndarray]:
        if adapter is None:
            return [np.zeros(info.shape, info.dtype) for info in self._inputs.values()]
        return [adapter.arrays[name] for name in self._inputs]
