"""Compiler options, and jaxlibs that do not know them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.pjrt import client
from jaxdelegate.xla import aot, options

SPLIT = "xla_gpu_experimental_force_split_k"
VECTORS, LIBRARY = "xla_cpu_prefer_vector_width", "xla_cpu_experimental_ynn_fusion_type"


@pytest.mark.parametrize(
    ("features", "single", "exact", "names"),
    [
        ({"avx512f"}, True, True, {VECTORS, LIBRARY}),
        ({"avx512f"}, False, True, {VECTORS}),
        ({"avx2"}, True, True, {LIBRARY}),
        ({"avx2"}, True, False, {LIBRARY}),
        ({"avx2"}, False, False, set()),
    ],
)
def test_options_follow_processor_threads_and_factors(
    monkeypatch: pytest.MonkeyPatch, features, single, exact, names
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(options, "cpu_features", lambda: frozenset(features))
    monkeypatch.setattr(options, "is_single_threaded", lambda: single)
    assert set(options.compiler_options("cpu", exact=exact)) == names
    assert set(options.compiler_options("cpu", exact=exact, in_place=True)) == names
    assert options.compiler_options("tpu", exact=exact) == {}


@pytest.mark.parametrize("donated", [(), (0,)])
def test_on_a_tpu_arrays_that_are_updated_in_place_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch, donated: tuple[int, ...]
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(aot, "platform_of", lambda _: "tpu")
    given = []
    monkeypatch.setattr(
        jax.stages.Lowered,
        "compile",
        lambda _self, compiler_options: given.append(compiler_options),
    )
    array, runtime = ((4,), np.dtype(np.float32)), client.of_jax(jax.devices("cpu")[0])
    aot.compile_function(lambda x: (x + 1,), [array], donated, runtime, exact=True)
    assert given == [{"xla_tpu_msa_inefficient_use_to_copy_ratio": 1.0} if donated else {}]


def test_on_a_gpu_graphs_take_in_convolutions_and_no_control_flow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    found = options.compiler_options("gpu", exact=True)
    kinds = str(found["xla_gpu_enable_command_buffer"]).split(",")
    assert {"FUSION", "CUBLAS", "CUBLASLT", "CUDNN", "CUSTOM_CALL", "CONVOLUTION"} <= set(kinds)
    assert not {"WHILE", "CONDITIONAL"} & set(kinds)  # nor does XLA by default


def test_what_xla_flags_name_is_not_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    free = set(options.compiler_options("gpu", exact=True))
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=x --{SPLIT}=0")
    assert free - set(options.compiler_options("gpu", exact=True)) == {SPLIT}


def test_short_factors_leave_matrices_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(options, "is_single_threaded", lambda: True)
    exact, short = (options.compiler_options("cpu", exact=e)[LIBRARY] for e in (True, False))
    assert "DOT" not in str(exact)
    assert "INDIVIDUAL_DOT" in str(short)
    lowered = jax.jit(lambda v: v * v).lower(jnp.arange(3.0))
    assert lowered.compile(compiler_options={LIBRARY: short})(jnp.arange(3.0))[2] == 4


@pytest.mark.parametrize("options", [{"xla_cpu_no_such_option": 1}, {LIBRARY: "NO_SUCH_TYPE"}])
def test_options_that_jaxlib_does_not_know_are_left_out(options) -> None:
    x = jnp.arange(3.0)
    lowered = jax.jit(lambda v: v * v).lower(x)
    assert aot.compiled_with(options, lowered)(x).tolist() == [0, 1, 4]


def test_options_that_jaxlib_knows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = jax.jit(lambda v: v * v).lower(jnp.arange(3.0))
    given = []
    compile_it = jax.stages.Lowered.compile

    def listen(self: jax.stages.Lowered, compiler_options: dict[str, int]) -> jax.stages.Compiled:
        given.append(dict(compiler_options))
        return compile_it(self, compiler_options=compiler_options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", listen)
    aot.compiled_with({VECTORS: 256, "xla_cpu_no_such_option": 1}, lowered)
    assert given[-1] == {VECTORS: 256}


def test_what_else_goes_wrong_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = jax.jit(lambda v: v * v).lower(jnp.arange(3.0))

    def fail(*_args: object, **_options: object) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: out of luck")

    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of luck"):
        aot.compiled_with({VECTORS: 512}, lowered)
