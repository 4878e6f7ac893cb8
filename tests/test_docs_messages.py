"""Messages quoted on pages are printed exactly so."""

import io
import logging
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import providers
from jaxdelegate.comparison.diff import inference_diff
from jaxdelegate.comparison.sides import delegated
from jaxdelegate.comparison.text import verdict
from jaxdelegate.compile import compilation
from jaxdelegate.demo.mobilenet import run_demo
from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.options import AddOptions, Conv2DOptions, MulOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from tests.support import library_builds

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("gpu.md", "index.md", "troubleshooting.md")


def blocks(page: str) -> list[str]:
    parts = (DOCS / page).read_text().split("```text\n")[1:]
    return [part.partition("\n```")[0] for part in parts]


def _with_custom_operator() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 32, 32, 3))
    weights = builder.constant(np.ones((4, 3, 3, 3), np.float32))
    bias = builder.constant(np.zeros(4, np.float32))
    h, cropped, y = (builder.tensor((1, 32, 32, 4)) for _ in range(3))
    builder.operator("CONV_2D", [x, weights, bias], [h], Conv2DOptions(stride_w=1, stride_h=1))
    builder.operator("MyCrop", [h], [cropped])
    builder.operator("SOFTMAX", [cropped], [y])
    builder.outputs(y)
    return builder.build()


def report() -> str:
    delegate = jd.JaxDelegate(platform="cpu", native_kernels=False)
    jd.Interpreter(model_content=_with_custom_operator(), experimental_delegates=[delegate])
    return str(delegate.report())


def logged(function: Callable[[], object]) -> str:
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    logger = logging.getLogger("jaxdelegate")
    logger.addHandler(handler)
    try:
        function()
    finally:
        logger.removeHandler(handler)
    return heard.getvalue()


def warning() -> str:
    return logged(report)


def rounding() -> str:
    def grid(scale: float) -> Quantization:
        return Quantization(np.array([scale], np.float32), np.array([0], np.int64))

    builder = ModelBuilder()
    x = builder.input((1, 20_000), np.int8, "x", quantization=grid(0.0313))
    y = builder.tensor((1, 20_000), np.int8, "y", quantization=grid(0.0626 * 2))
    z = builder.tensor((1, 20_000), np.int8, "z", quantization=grid(0.0626 * 2))
    factor = builder.constant(np.array([16], np.int8), quantization=grid(1.0))
    builder.operator("ADD", [x, x], [y], AddOptions(), version=2)
    builder.operator("MUL", [y, factor], [z], MulOptions(), version=2)
    builder.outputs(z)
    model = builder.build()
    delegate = jd.JaxDelegate(quant_mode="float_view")
    return verdict(inference_diff(model, delegated(model, [delegate]), num_runs=2))


def shared_directory() -> str:
    Path("shared").mkdir()
    Path("shared").chmod(0o777)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        jd.JaxDelegate(platform="cpu", serialization_dir="shared")
    return "\n".join(f"{w.category.__name__}: {w.message}" for w in heard)


def no_gpu() -> str:
    if any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("this machine has a GPU")
    with pytest.raises(jd.OptionError) as caught:
        jd.JaxDelegate(platform="gpu")
    return f"OptionError: {caught.value}"


def threads() -> str:
    return logged(lambda: providers.use_threads(1))


def kernels() -> str:
    source = library_builds.source(Path("source"))
    library_builds.build(source, PATH="").check_returncode()  # no compiler is found
    why_not = library._why_not(source / library_builds.LIBRARY)
    return f"Native kernels: none, XLA computes all: {why_not}."


def no_usable_gpu() -> str:
    with pytest.MonkeyPatch.context() as patch:  # an existing module instead of the plugin
        patch.setattr(compilation, "_CUDA_PLUGINS", ("json",))
        return no_gpu()


def demo() -> str:
    return str(run_demo(size=32, width=0.25, num_runs=1))


PRINTED: tuple[Callable[[], str], ...] = (
    *(demo, report, warning, rounding, shared_directory, threads, kernels),
    *(no_gpu, no_usable_gpu),
)


def same_everywhere(line: str) -> str:
    """The line without values that depend on the machine: largest error, kernels, user."""
    line = re.sub(r"largest error \S+ of", "largest error N of", line.strip())
    line = re.sub(r"jaxdelegate-\d+", "jaxdelegate-UID", line)
    return re.sub(r"^Native kernels: (\w+|off; .*)\.$", "Native kernels: ISA.", line)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every line that the functions above print, and those of docs/errors.md."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("messages"))
        patch.delenv("NPROC", raising=False)
        texts = [(DOCS / "errors.md").read_text(), *(function() for function in PRINTED)]
    return {same_everywhere(line) for text in texts for line in text.splitlines()}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_quotes_is_printed(page: str, printed: set[str]) -> None:
    lines = [same_everywhere(line) for block in blocks(page) for line in block.splitlines()]
    assert lines
    assert [line for line in lines if line not in printed] == []
