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


def _dilated_pool(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID", window_dilation=(2, 1))


def _batch_groups(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(x, k, (1,), "SAME", batch_group_count=2)


REFUSED: dict[str, tuple[Any, tuple[Any, ...], str, str]] = {
    "cholesky": (jnp.linalg.cholesky, (X,), "cholesky", "compute it outside"),
    "eigenvalues": (jnp.linalg.eigh, (X,), "eigh", "compute it outside"),
    "svd": (jnp.linalg.svd, (X,), "svd", "compute it outside"),
    "solve": (jnp.linalg.solve, (X, X), "lu", "compute it outside"),
    "lgamma": (lax.lgamma, (X,), "lgamma", "compute it outside"),
    "digamma": (lax.digamma, (X,), "digamma", "compute it outside"),
    "nextafter": (lambda x: jnp.nextafter(x, x), (X,), "nextafter", "compute it outside"),
    "qr": (jnp.linalg.qr, (X,), "qr", "compute it outside"),
    "triangular_solve": (
        lambda x: lax.linalg.triangular_solve(x, x),
        (X,),
        "triangular_solve",
        "compute it outside",
    ),
    "igamma": (lax.igamma, (X, X), "igamma", "compute it outside"),
    "bessel": (lax.bessel_i1e, (X,), "bessel_i1e", "compute it outside"),
    "half_bits": (
        lambda x: lax.bitcast_convert_type(x, np.int16),
        (I32,),
        "bitcast_convert_type",
        "convert with astype",
    ),
    "other_generator": (
        lambda n: jax.random.normal(jax.random.key(n, impl="rbg"), (3,)),
        (np.int32(1),),
        "random_seed",
        "use threefry2x32",
    ),
    "complex_root": (
        lambda x: jnp.sqrt(jnp.fft.fft(x)).real,
        (X,),
        "sqrt",
        "compute with their parts",
    ),
    "own_reduction": (
        lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b * b, (1,)),
        (X,),
        "reduce",
        "use sum, max",
    ),
    "product_of_windows": (
        lambda x: lax.reduce_window(x, 1.0, lax.mul, (2, 2), (1, 1), "VALID"),
        (X,),
        "reduce_window",
        "use lax.add, lax.max or lax.min",
    ),
    "xor_of_all": (
        lambda x: lax.reduce_xor(x, (0,)),
        (I32,),
        "reduce_xor",
        "compute it outside",
    ),
    "callback": (_callback, (X,), "pure_callback", "pass the result as an input"),
    "integer_product": (
        lambda x: x @ x,
        (I32.reshape(2, 2),),
        "dot_general",
        "convert the inputs to float32",
    ),
    "dilated_pool": (_dilated_pool, (X,), "reduce_window_sum", "convert to float32"),
    "batch_groups": (
        _batch_groups,
        (np.zeros((2, 2, 4), np.float32), np.zeros((2, 2, 3), np.float32)),
        "conv_general_dilated",
        "use feature_group_count",
    ),
    "gamma": (
        lambda data: jax.random.gamma(jax.random.wrap_key_data(data), 1.0),
        (np.zeros(2, np.uint32),),
        "random_gamma",
        KEY,
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


def test_a_complex_output() -> None:
    with pytest.raises(ConversionError, match=r"the output 'output' is complex.*return its real"):
        jaxdelegate.from_jax(jnp.fft.fft, X)


def test_keys_as_inputs_and_outputs() -> None:
    with pytest.raises(ConversionError, match=r"the input 'key' is a random key.*wrap_key_data"):
        jaxdelegate.from_jax(lambda key: jax.random.normal(key, (3,)), jax.random.key(0))
    with pytest.raises(ConversionError, match=r"the output 'output' is a random key.*key_data"):
        jaxdelegate.from_jax(jax.random.key, np.int32(0))


def test_float64() -> None:
    with (
        jax.enable_x64(True),
        pytest.raises(ConversionError, match=r"the input 'x' is float64.*use float32"),
    ):
        jaxdelegate.from_jax(lambda x: x + 1, np.zeros(3))


def test_an_example_that_is_no_array() -> None:
    with pytest.raises(ConversionError, match=r"an example must be an array.*functools.partial"):
        jaxdelegate.from_jax(lambda x: x, object())
    with pytest.raises(ConversionError, match=r"got ndarray object; bind other"):
        jaxdelegate.from_jax(lambda x: x, np.array(["a"], object))
