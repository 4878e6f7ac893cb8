"""MobileNet v1 with random weights: built, delegated, and compared with the numpy reference."""

import dataclasses
import statistics
import time

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.demo.comparison import largest_difference
from jaxdelegate.demo.layers import LINEAR, Layers, scaled
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.op_lowering.options import ReshapeOptions
from jaxdelegate.report.delegation import DelegationReport

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
    net = Layers(seed, "MobileNet v1, random weights")
    x, shape = net.image(size)
    x, shape = net.convolution(x, shape, scaled(32, width), 3, 2)
    for filters, stride in MOBILENET_V1_BLOCKS:
        x, shape = net.depthwise(x, shape, stride)
        x, shape = net.convolution(x, shape, scaled(filters, width), 1, 1)
    x, shape = net.average_pool(x, shape)
    x, shape = net.convolution(x, shape, classes, 1, 1, LINEAR)
    logits = net.builder.tensor((1, classes), name="logits")
    new_shape = net.builder.constant(np.array([-1, classes], np.int32), "logits/shape")
    net.builder.operator(
        "RESHAPE", [x, new_shape], [logits], ReshapeOptions(new_shape=(-1, classes))
    )
    net.softmax(logits, classes)
    return net.builder.build()


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """Times are in milliseconds."""

    report: DelegationReport
    model_bytes: int
    ready_ms: float  # load, partition, compile
    delegate_ms: float  # median of the timed runs
    reference_ms: float  # one run
    largest_error: float  # of any output element, relative to the largest output
    agrees: bool

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
    outputs = [d["index"] for d in reference.get_output_details()]
    got = [delegated.get_tensor(i) for i in outputs]
    expected = [reference.get_tensor(i) for i in outputs]
    return DemoResult(
        report=delegate.report(),
        model_bytes=len(content),
        ready_ms=1e3 * ready,
        delegate_ms=1e3 * statistics.median(times),
        reference_ms=1e3 * reference_time,
        largest_error=largest_difference(got, expected),
        agrees=_agree(got, expected),
    )


def _timed(interpreter: Interpreter, x: np.ndarray) -> float:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    start = time.perf_counter()
    interpreter.invoke()
    return time.perf_counter() - start


def _agree(got: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    try:
        assert_close(got, expected, tolerance=NETWORK)
    except AssertionError:
        return False
    return True
