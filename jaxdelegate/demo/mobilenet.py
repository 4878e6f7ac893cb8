"""MobileNet v1 with random weights: built, delegated, and compared with the numpy reference."""

import dataclasses
import math
import statistics
import time

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.measuring.tolerance import NETWORK
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    Options,
    Padding,
    Pool2DOptions,
    ReshapeOptions,
    SoftmaxOptions,
)
from jaxdelegate.report.delegation import DelegationReport
from jaxdelegate.testing.builder import ModelBuilder

# Filters and stride of each depthwise-separable block (Howard et al. 2017, table 1).
MOBILENET_V1_BLOCKS = [
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5,
    (1024, 2), (1024, 1),
]  # fmt: skip
_CLASSES = 1001  # ImageNet and a background class, as TFLite's hosted models


def mobilenet_v1(
    *, size: int = 224, width: float = 1.0, classes: int = _CLASSES, seed: int = 0
) -> bytes:
    """MobileNet v1 as a .tflite, float32: images [1, size, size, 3] to probabilities [1, classes].

    `size` is a multiple of 32; `width` multiplies all channels. The file has 31 operators, and
    about 17 MB at full width. Weights are random.
    """
    net = _Layers(seed, size)
    net.convolution(max(8, int(32 * width)), 3, 2)
    for filters, stride in MOBILENET_V1_BLOCKS:
        net.depthwise(stride)
        net.convolution(max(8, int(filters * width)), 1, 1)
    net.average_pool()
    net.convolution(classes, 1, 1, ActivationFunctionType.NONE)
    return net.classifier(classes)


class _Layers:
    """Builds a network layer by layer; random weights keep activations near unit size."""

    def __init__(self, seed: int, size: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._builder = ModelBuilder("MobileNet v1, random weights")
        self._side, self._channels, self._count = size, 3, 0
        shape, signature = (1, size, size, 3), (-1, size, size, 3)  # any batch
        self._x = self._builder.input(shape, np.float32, "input", shape_signature=signature)

    def convolution(
        self,
        filters: int,
        window: int,
        stride: int,
        activation: ActivationFunctionType = ActivationFunctionType.RELU6,
    ) -> None:
        weights = (filters, window, window, self._channels)
        self._side, self._channels = -(-self._side // stride), filters
        options = Conv2DOptions(Padding.SAME, stride, stride, activation)
        self._weighted("CONV_2D", "conv", weights, math.prod(weights[1:]), options)

    def depthwise(self, stride: int) -> None:
        weights, relu6 = (1, 3, 3, self._channels), ActivationFunctionType.RELU6
        self._side = -(-self._side // stride)
        options = DepthwiseConv2DOptions(Padding.SAME, stride, stride, 1, relu6)
        self._weighted("DEPTHWISE_CONV_2D", "depthwise", weights, 9, options)

    def average_pool(self) -> None:
        options = Pool2DOptions(Padding.VALID, 1, 1, self._side, self._side)
        self._side = 1
        self._unary("AVERAGE_POOL_2D", (1, 1, 1, self._channels), "pool", options)

    def classifier(self, classes: int) -> bytes:
        """The file, whose outputs are the probabilities of the last layer's logits."""
        logits = self._builder.tensor((1, classes), name="logits")
        shape = self._builder.constant(np.array([-1, classes], np.int32), "logits/shape")
        options = ReshapeOptions(new_shape=(-1, classes))
        self._builder.operator("RESHAPE", [self._x, shape], [logits], options)
        self._x = logits
        self._unary("SOFTMAX", (1, classes), "probabilities", SoftmaxOptions(beta=1.0))
        self._builder.outputs(self._x)
        self._builder.signature("serving_default", {"input": 0}, {"probabilities": self._x})
        return self._builder.build()

    def _weighted(
        self, operator: str, kind: str, shape: tuple[int, ...], fan_in: int, options: Options
    ) -> None:
        """Add a layer with weights of this shape, `fan_in` of them for each result."""
        self._count += 1
        name, out = f"{kind}_{self._count}", (1, self._side, self._side, self._channels)
        # RELU6 cuts off half of what a layer computes (He et al. 2015).
        weights = self._rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)
        w = self._builder.constant(weights, f"{name}/weights")
        y = self._builder.tensor(out, name=name)
        bias = self._rng.normal(0, 0.1, self._channels).astype(np.float32)
        inputs = [self._x, w, self._builder.constant(bias, f"{name}/bias")]
        self._builder.operator(operator, inputs, [y], options)
        self._x = y

    def _unary(self, operator: str, shape: tuple[int, ...], name: str, options: Options) -> None:
        y = self._builder.tensor(shape, name=name)
        self._builder.operator(operator, [self._x], [y], options)
        self._x = y


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """Times are in milliseconds."""

    report: DelegationReport
    model_bytes: int
    ready_ms: float  # load, partition, compile
    delegate_ms: float  # median of the timed runs
    reference_ms: float  # one run
    largest_error: float  # any output element's, relative to the largest output

    @property
    def agrees(self) -> bool:
        """Whether the outputs are those of the numpy reference, within the tolerance."""
        return self.largest_error <= NETWORK.of_largest

    def __str__(self) -> str:
        verdict = "agree" if self.agrees else "DISAGREE"
        return "\n".join(
            [
                f"MobileNet v1, {self.model_bytes / 1e6:.1f} MB, built in memory",
                str(self.report),
                f"outputs {verdict} with the numpy reference: largest error "
                f"{self.largest_error:.2g} of the largest output "
                f"(allowed {NETWORK.of_largest:.0e})",
                f"ready after {self.ready_ms:.0f} ms (read, partition, compile, move the weights)",
                f"one inference: {self.delegate_ms:.2f} ms delegated,"
                f" {self.reference_ms:.0f} ms numpy reference",
            ]
        )


def run_demo(*, size: int, width: float, num_runs: int) -> DemoResult:
    content = mobilenet_v1(size=size, width=width)
    x = np.random.default_rng(0).uniform(-1, 1, (1, size, size, 3)).astype(np.float32)
    delegate = JaxDelegate()
    start = time.perf_counter()
    delegated = Interpreter(model_content=content, experimental_delegates=[delegate])
    delegated.allocate_tensors()
    ready = time.perf_counter() - start
    times = [_timed(delegated, x) for _ in range(num_runs + 1)][1:]  # the first run warms up
    reference = Interpreter(model_content=content)
    reference.allocate_tensors()
    reference_time = _timed(reference, x)
    output = reference.get_output_details()[0]["index"]
    got, expected = delegated.get_tensor(output), reference.get_tensor(output)
    return DemoResult(
        report=delegate.report(),
        model_bytes=len(content),
        ready_ms=1e3 * ready,
        delegate_ms=1e3 * statistics.median(times),
        reference_ms=1e3 * reference_time,
        largest_error=float(np.abs(got - expected).max() / np.abs(expected).max()),
    )


def _timed(interpreter: Interpreter, x: np.ndarray) -> float:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    start = time.perf_counter()
    interpreter.invoke()
    return time.perf_counter() - start
