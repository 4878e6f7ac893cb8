import functools
import gc
import importlib
import os
import re
import shutil
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: its threads wait busily

import jax
import numpy as np
import pytest
from jax import lax
from jax.experimental.compilation_cache import compilation_cache

from jaxdelegate import device_weights
from jaxdelegate.compile import precision_policy, programs
from jaxdelegate.kernels import library
from jaxdelegate.litert import context
from jaxdelegate.model import open_models
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Padding,
    Pool2DOptions,
    SoftmaxOptions,
)
from jaxdelegate.testing import ModelBuilder, case
from jaxdelegate.xla import aot
from tests.support.children import compiling_quickly

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "float32")

# What XLA does without the options of operator cases.
_DEFAULTS: dict[str, bool | str] = {
    "xla_backend_optimization_level": "3",
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
    "xla_cpu_parallel_codegen_split_count": "32",
}
XLAS_DEFAULTS = {name: _DEFAULTS[name] for name in case.COMPILER_OPTIONS}

# Tests that compile what they test. A third of them are slow tests and marked `optimized`, as XLA
# optimizes what they compile; to compile it quickly as well would find nothing else.
COMPILING = re.compile(
    r"tests/(function/(?!test_sharded)|gradients/|lowering/)"  # another process does for that one
    r"|tests/(op_lowering|quant)/(?!.*::test_(reference|refuses)_?)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "native kernels to test instead of the built ones: `make sanitize`"
    parser.addoption("--kernels", type=Path, default=library.LIBRARY, help=help_)
    help_ = "compile with all of XLA's optimizations, operator cases only if marked `optimized`"
    parser.addoption("--optimized", action="store_true", help=help_)
    help_ = "also walks over every case and every model, as `make test-exhaustive` does in pieces"
    parser.addoption("--exhaustive", action="store_true", help=help_)


def pytest_configure(config: pytest.Config) -> None:
    library.LIBRARY = config.getoption("--kernels")
    if not config.getoption("--optimized"):
        os.environ.update(compiling_quickly())  # all programs, those of child processes too


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Garbage is not collected meanwhile: it would take half of the time."""
    gc.disable()
    try:
        yield
    finally:
        importlib.import_module("hypothesis")  # its plugin would, but after `gc.freeze` that fails
        gc.set_threshold(20_000)  # while JAX traces, little of what is new is garbage
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect exhaustive tests, and mark a third of the tests that compile."""
    _check_modules({item.path for item in items if item.get_closest_marker("slow")})
    is_exhaustive = config.getoption("--exhaustive")
    if is_exhaustive:
        _mark(items, "exhaustive", lambda item: "is_exhaustive" in item.fixturenames)
    else:
        _leave_out_exhaustive(config, items)
    _mark(items, "slow", _is_of_the_third)
    _mark(items, "optimized", _compiles if is_exhaustive else _is_of_the_third)


def _mark(
    items: Iterable[pytest.Item], name: str, is_chosen: Callable[[pytest.Function], bool]
) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and is_chosen(item):
            item.add_marker(name)


def _leave_out_exhaustive(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    chosen = {*items}.difference(left_out)
    items[:] = [item for item in items if item in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def _check_modules(slow: set[Path]) -> None:
    """`make test-slow` finds modules with slow tests by their text."""
    for path in slow:
        if "mark.slow" not in path.read_text():
            raise pytest.UsageError(f"{path} has slow tests, but no `mark.slow`: mark them there")


def _compiles(item: pytest.Item) -> bool:
    return COMPILING.match(item.nodeid) is not None


def _is_of_the_third(item: pytest.Item) -> bool:
    return _compiles(item) and zlib.crc32(item.nodeid.encode()) % 3 == 0


def _is_optimized(item: pytest.Item) -> bool:
    """Whether `--optimized` applies to the test's operator cases."""
    is_chosen = _compiles if item.config.getoption("--exhaustive") else _is_of_the_third
    return bool(item.config.getoption("--optimized")) and is_chosen(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Without the options of operator cases, XLA optimizes them."""
    with pytest.MonkeyPatch.context() as patch:
        if _is_optimized(item):
            for name in [*case.COMPILER_OPTIONS]:
                patch.delitem(case.COMPILER_OPTIONS, name)
        return (yield)  # type: ignore[return-value]


@pytest.fixture
def is_exhaustive(request: pytest.FixtureRequest) -> bool:
    """Whether a test runs all that it can; `--exhaustive` marks the tests that ask for it."""
    return bool(request.config.getoption("--exhaustive"))


@pytest.fixture(scope="session", autouse=True)
def caches_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines store their programs in a folder of the tests, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "caches"))
        yield


@pytest.fixture(scope="session", autouse=True)
def files_are_not_waited_for() -> Iterator[None]:
    """They need not survive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def only_garbage_of_this_module() -> None:
    """Garbage collections do not look at what is older: all tests, and what JAX has traced."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def forget_models() -> Iterator[Callable[[], None]]:
    """Each test opens its models for the first time: programs of another test are not shared.

    A test calls it to open a model as another process would.
    """

    def forget() -> None:
        shared = (
            open_models._OPEN,
            context._CONTENTS,
            device_weights._ON_DEVICES,
            programs._OF_CONTENTS,
        )
        for known in shared:
            known.clear()

    yield forget
    forget()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lowerings for a GPU run on this machine."""

    def chosen(*args: Any, default: Callable[..., Any], **platforms: Callable[..., Any]) -> Any:
        return platforms.get("cuda", default)(*args)

    monkeypatch.setattr(lax, "platform_dependent", chosen)
    jax.clear_caches()  # traces for any platform
    yield
    jax.clear_caches()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Functions as parameters have their names as ids: addresses differ between processes."""
    return getattr(val, "__name__", None) if callable(val) else None


@pytest.fixture
def bfloat16_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delegates act as on a processor with bfloat16 products; XLA computes them on any."""
    monkeypatch.setattr(precision_policy, "cpu_features", lambda: frozenset(["avx512_bf16"]))
    monkeypatch.setattr(library, "bfloat16_gain", lambda: 2.0)


@pytest.fixture
def built() -> None:
    """Skips tests of the native kernels where these are missing."""
    if (reason := library.why_not()) is not None:
        pytest.skip(reason)


@pytest.fixture
def no_native_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests what XLA gets without native kernels."""
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "absent")


@pytest.fixture
def signals_at_their_defaults() -> Iterator[None]:
    """For tests that send signals to processes: these inherit which signals are ignored.

    A job in the background ignores Ctrl-C, and one under nohup ignores SIGHUP.
    """
    defaults: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
    }
    ignored = [number for number in defaults if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, defaults[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session")
def _programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def compiled_once(_programs: Path) -> Iterator[None]:
    """For tests that need the same small programs repeatedly: JAX's own cache stores them."""
    values = {
        "jax_compilation_cache_dir": str(_programs),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in values}
    _configure(values)
    yield
    _configure(before)


@pytest.fixture
def compiled_uncached(compiled_once: None) -> Iterator[None]:
    """For tests that store programs, because XLA cannot serialize programs that it has loaded."""
    del compiled_once
    directory = {"jax_compilation_cache_dir": jax.config.jax_compilation_cache_dir}
    _configure({"jax_compilation_cache_dir": None})
    yield
    _configure(directory)


def _configure(values: dict[str, object]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def optimize(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether delegates compile with all of XLA's optimizations, or like operator cases."""
    options = aot.compiler_options

    def chosen(*args: Any, is_optimized: bool, **more: Any) -> dict[str, Any]:
        return {
            **options(*args, **more),
            **(XLAS_DEFAULTS if is_optimized else case.COMPILER_OPTIONS),
        }

    return lambda is_optimized: monkeypatch.setattr(
        aot, "compiler_options", functools.partial(chosen, is_optimized=is_optimized)
    )


@pytest.fixture
def optimized(optimize: Callable[[bool], None]) -> None:
    """Delegates compile with all of XLA's optimizations, as users' do."""
    optimize(True)


@pytest.fixture(scope="session")
def network() -> bytes:
    """One or two of each kind of layer in MobileNet v1; quick to compile."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()

    def weights(*shape: int) -> int:
        return builder.constant(rng.normal(0, 0.5, shape).astype(np.float32))

    x = builder.input((1, 8, 8, 3), np.float32, "input")
    a, b, c = (
        builder.tensor((1, 8, 8, 4), name=name) for name in ("conv_1", "depthwise_2", "conv_3")
    )
    d, e = (builder.tensor((1, 1, 1, 4), name=name) for name in ("pool", "probabilities"))
    one = Conv2DOptions(Padding.SAME, 1, 1)
    builder.operator("CONV_2D", [x, weights(4, 3, 3, 3), weights(4)], [a], one)
    builder.operator(
        "DEPTHWISE_CONV_2D",
        [a, weights(1, 3, 3, 4), weights(4)],
        [b],
        DepthwiseConv2DOptions(Padding.SAME, 1, 1, 1),
    )
    builder.operator("CONV_2D", [b, weights(4, 1, 1, 4), weights(4)], [c], one)
    builder.operator("AVERAGE_POOL_2D", [c], [d], Pool2DOptions(Padding.VALID, 1, 1, 8, 8))
    builder.operator("SOFTMAX", [d], [e], SoftmaxOptions(beta=1.0))
    builder.outputs(e)
    return builder.build()


@pytest.fixture(scope="session")
def classifier() -> bytes:
    """Images [n, 16, 16, 3] to probabilities [n, 32]; small, so quick to compile."""
    builder = ModelBuilder()
    x = builder.input((1, 16, 16, 3), np.float32, "input")
    shape = builder.constant(np.array([-1, 768], np.int32))
    weights = builder.constant(np.linspace(-1, 1, 32 * 768, dtype=np.float32).reshape(32, 768))
    flat, sums = builder.tensor((1, 768)), builder.tensor((1, 32))
    y = builder.tensor((1, 32), np.float32, "probabilities")
    builder.operator("RESHAPE", [x, shape], [flat])
    builder.operator("FULLY_CONNECTED", [flat, weights, None], [sums], FullyConnectedOptions())
    builder.operator("SOFTMAX", [sums], [y], SoftmaxOptions(beta=1.0))
    builder.outputs(y)
    builder.signature("serving_default", {"input": x}, {"probabilities": y})
    return builder.build()


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., str]:
    """Opens a page in Chromium and returns its DOM after its scripts have run."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")

    def dom(page: str, fragment: str = "", *, width: int = 1400, height: int = 900) -> str:
        path = tmp_path / "page.html"
        path.write_text(page, "utf-8")
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},{height}"),
            *("--virtual-time-budget=3000", "--dump-dom", f"file://{path}#{fragment}"),
        ]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return run.stdout

    return dom
