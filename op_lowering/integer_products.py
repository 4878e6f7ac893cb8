"""Exact sums of products of integers: int8 times int8, added up in int32.

A quantized tensor is taken apart into int8 pieces, value - zero point = sum of factor * (piece -
zero): int8 is one piece, uint8 one that is moved by 128, int16 two, its high byte, and its low byte
moved by 128. So every product is one that devices have units for, and nothing is rounded. Zeros are
taken out of the sums: sum (x - a)(w - b) = sum xw - b sum x - a sum (w - b).
Sums of int32 wrap around as the kernels' do; two pieces give exact int64 sums of fewer than
MOST_PRODUCTS products.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.convolution_ways import (
    Convolution,
    Layout,
    Run,
    as_matrix,
    by_group,
    dot,
    few_products,
    grouped_dot,
    is_tap_sum,
    by_tap,
    tap_sum,
)
from jaxdelegate.op_lowering.products import Arithmetic
