"""Functions that cannot be written: each error names the primitive, the line and a remedy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdelegate
from jaxdelegate.errors import ConversionError

X = np.eye(4, dtype=np.float32)
I64 = np.arange(4)
U8 = np.arange(4, dtype=np.uint8)
I32 = np.arange(4, dtype=np.int32)
KEY = "create random numbers from a constant key"


def _callback(x: Any) -> Any:
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _pool3(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (2, 2, 2), (1, 1, 1), "VALID")


def _batch_groups(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (1,), "SAME", batch_group_count=2)


REFUSED: dict[str, tuple[Any, tuple[Any, ...], str, str]] = {
    "cholesky": (jnp.linalg.cholesky, (X,), "cholesky", "compute it outside"),
    "eigenvalues": (jnp.linalg.eigh, (X,), "eigh", "compute it outside"),
    "svd": (jnp.linalg.svd, (X,), "svd", "compute it outside"),
    "solve": (jnp.linalg.solve, (X, X), "lu", "compute it outside"),
    "lgamma": (lax.lgamma, (X,), "lgamma", "compute it outside"),
    "digamma": (lax.digamma, (X,), "digamma", "compute it outside"),
    "erf_inv": (lax.erf_inv, (X,), "erf_inv", "compute it outside"),
    "nextafter": (lambda x: jnp.nextafter(x, x), (X,), "nextafter", "compute it outside"),
    "bits": (lax.population_count, (I32,), "population_count", "compute it outside"),
    "bitcast": (
        lambda x: lax.bitcast_convert_type(x, np.int32),
        (X,),
        "bitcast_convert_type",
        "convert with astype",
    ),
    "and_of_bits": (lambda x: x & 3, (I32,), "and", "compute with booleans"),
    "xor_of_all": (
        lambda x: lax.reduce_xor(x, (0,)),
        (I32,),
        "reduce_xor",
        "compute it outside",
    ),
    "shift": (lambda x, n: x << n, (I32, I32), "shift_left", "multiply by a power of two"),
    "callback": (_callback, (X,), "pure_callback", "pass the result as an input"),
    "seed": (
        lambda n: jax.random.normal(jax.random.key(n), (3,)),
        (np.int32(1),),
        "random_",
        KEY,
    ),
    "integer_product": (
        lambda x: x @ x,
        (I32.reshape(2, 2),),
        "dot_general",
        "convert the inputs to float32",
    ),
    "pool_of_three": (_pool3, (np.zeros((4, 4, 4), np.float32),), "reduce_window_sum", "along two"),
    "batch_groups": (
        _batch_groups,
        (np.zeros((2, 2, 4), np.float32), np.zeros((2, 2, 3), np.float32)),
        "conv_general_dilated",
        "use feature_group_count",
    ),
    "two_keys": (lambda x: lax.sort((x, x), num_keys=2), (X,), "sort", "sort by one key"),
    "logcumsumexp": (
        lax.cumlogsumexp,
        (X,),
        "cumlogsumexp",
        "compute it outside",
    ),
    "integer_exp": (
        lambda x: lax.rng_bit_generator(x, (2,))[1],
        (np.zeros(4, np.uint32),),
        "rng_bit_generator",
        KEY,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_line_and_the_remedy(name: str) -> None:
    function, examples, primitive, remedy = REFUSED[name]

    def written(*arguments: Any) -> Any:
        return function(*arguments)

    with pytest.raises(ConversionError) as caught:
        jaxdelegate.from_jax(written, *examples)
    text = str(caught.value)
    assert text.startswith(f"from_jax: {primitive}")
    assert f"{__file__}:" in text
    assert remedy in text


def test_complex_arrays_in_a_loop() -> None:
    def turned(x: Any) -> Any:
        return lax.fori_loop(0, 20, lambda _, z: z * 1j, jnp.fft.fft(x)).real

    with pytest.raises(ConversionError, match="compute with their parts"):
        jaxdelegate.from_jax(turned, X)


def test_a_key_that_a_loop_carries() -> None:
    def walk(x: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            key, y = carry
            key, used = jax.random.split(key)
            return (key, y + jax.random.normal(used, y.shape)), None

        return lax.scan(step, (jax.random.key(0), x), None, length=50)[0][1]

    with pytest.raises(ConversionError, match="a random key is not a tensor"):
        jaxdelegate.from_jax(walk, X)


def test_a_complex_output() -> None:
    with pytest.raises(ConversionError, match=r"the output 'output' is complex.*return its real"):
        jaxdelegate.from_jax(jnp.fft.fft, X)


def test_a_key_as_an_input() -> None:
    with pytest.raises(ConversionError, match="the input 'key' is a random key"):
        jaxdelegate.from_jax(lambda key: jax.random.normal(key, (3,)), jax.random.key(0))


def test_float64() -> None:
    with (
        jax.enable_x64(True),
        pytest.raises(ConversionError, match=r"the input 'x' is float64.*use float32"),
    ):
        jaxdelegate.from_jax(lambda x: x + 1, np.zeros(3))


def test_an_example_that_is_no_array() -> None:
    with pytest.raises(ConversionError, match=r"an example must be an array.*functools.partial"):
        jaxdelegate.from_jax(lambda x: x, object())
