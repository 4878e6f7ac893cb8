"""What the functions of a model share: its weights, states and compilers."""

import dataclasses
import functools
from typing import NamedTuple

import jax

from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.compile.target import AbsentTarget, Target
from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.errors import OptionError
from jaxdelegate.function.leaves import Leaves
from jaxdelegate.function.records import Params
from jaxdelegate.function.states import ModelStates
from jaxdelegate.function.training.trainable import Trainable
from jaxdelegate.function.views import View
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.options import DelegateOptions, Platform
from jaxdelegate.passes.propagation import Subgraphs
from jaxdelegate.pjrt import client
from jaxdelegate.xla.options import platform_of

_MAX_DEVICES = 64


class Ends(NamedTuple):
    """A subgraph, with the tensors that are its function's inputs and outputs."""

    subgraph: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Compilers:
    """The compilers of a model's functions: for programs on devices, and for functions to trace."""

    def __init__(self, view: View, weights: DeviceWeights | None = None) -> None:
        """Prepared weights join `weights`."""
        self._options, self._prepared = view.options, view.prepared or view.options
        self._follows_xnnpack, self._weights = view.follows_xnnpack, weights
        self._by_device: LruCache[jax.Device, Compiler] = LruCache(_MAX_DEVICES)

    @functools.cached_property
    def traced(self) -> Compiler:
        """The compiler for functions that JAX transforms, without native kernels."""
        return Compiler(dataclasses.replace(self._options, native_kernels=False))

    @functools.cache  # noqa: B019 (as long as the model)
    def preparing(self, platform: Platform | None) -> tuple[Compiler, DeviceWeights]:
        """The compiler of functions with prepared weights, and the arrays that they share.

        No program uses these arrays, because a caller may donate them. They are on a CPU if the
        platform is not there, so that functions can be exported for it.
        """
        options = self._prepared
        if platform is not None:
            options = dataclasses.replace(options, platform=platform)
        target = None if platform is None else _target(platform, options)
        compiler = Compiler(options, target, follows_xnnpack=self._follows_xnnpack)
        runtime = client.of_jax(compiler.device)
        if self._weights is not None and self._weights.runtime is runtime:
            return compiler, self._weights
        return compiler, DeviceWeights(runtime)

    def on(self, device: jax.Device) -> Compiler:
        def compiler() -> Compiler:
            index = jax.devices(device.platform).index(device)
            where = {"platform": device.platform, "device_index": index}
            return Compiler(dataclasses.replace(self._options, **where))

        return self._by_device.get(device, compiler)


def _target(platform: Platform, options: DelegateOptions) -> Target:
    try:
        return Target(platform, options.device_index)
    except OptionError:
        if platform_of(platform) == "cpu" or options.device_index:
            raise
        return AbsentTarget(platform)


@dataclasses.dataclass(frozen=True, eq=False)
class ModelContext:
    """What the functions of a model share."""

    subgraphs: Subgraphs  # those of the model, or of the part that the view selects
    view: View  # the part, its limits and its options
    trainable: Trainable  # the scales of the file
    states: ModelStates  # the states of all subgraphs
    compilers: Compilers  # by device
    leaves: Leaves  # the names of the weights
    arrays: Params = dataclasses.field(default_factory=dict)  # the file's, as far as they were used
