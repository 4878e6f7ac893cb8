"""Every algorithm for a convolution that is worth measuring, the heuristics' default first.

An algorithm is named after the function that runs it. Left out are sums so long that they take
seconds to compile, and patches that take orders of magnitude more memory than the image.
"""

import math
from collections.abc import Iterator, Mapping

from jaxdelegate.op_lowering.convolution.algorithms import (
    Convolution,
    Layout,
    Run,
    algorithm,
    as_matrix,
    as_stored,
    by_block,
    by_group,
    by_library,
    by_tap,
    dot,
    group_by_group,
    grouped_dot,
    has_blocks,
    integer_algorithm,
    shares,
    split_dot,
    tap_sum,
    tap_sum_by_block,
)
from jaxdelegate.op_lowering.convolution.winograd import is_possible, pays, transformed, winograd

_LONGEST_SUM = 64  # products that are written out one by one
_LONGEST_DEPTHWISE_SUM = 256
_MOST_GROUPS = 32  # convolutions side by side
_MOST_PATCHES = 1 << 26  # elements of one image's patches

Algorithms = Mapping[str, tuple[Layout, Run]]


def float_algorithms(
    platform: str,
    c: Convolution,
    *,
    can_transform: bool = False,
    is_clamped: bool = False,
    splits: bool = False,
) -> Algorithms:
    """The default first. See `algorithm` for `is_clamped`, `KernelSet` for `splits`.

    `can_transform`: the filter is float32 and constant, so that sums of its values cost neither
    time nor precision.
    """
    is_tiled = platform == "cpu" and can_transform and is_possible(c)
    ours = [(transformed, winograd)] if is_tiled else []
    default = algorithm(platform, c, is_clamped=is_clamped)
    if is_tiled and pays(c):
        default = transformed, winograd
    if platform == "gpu" and shares(c) > 1:
        ours.append((as_matrix, split_dot))
        default = ours[-1] if splits and default == (as_matrix, dot) else default
    if platform == "cpu" and has_blocks(c):
        ours.append((by_block, tap_sum_by_block))
    return _named(default, *ours, *_possible(platform, c))


def integer_algorithms(platform: str, c: Convolution) -> Algorithms:
    """For int8, summed in int32."""
    return _named(integer_algorithm(platform, c), *_possible(platform, c))


def _named(*algorithms: tuple[Layout, Run]) -> Algorithms:
    named: dict[str, tuple[Layout, Run]] = {}
    for layout, run in algorithms:
        named.setdefault(run.__name__, (layout, run))
    return named


def _possible(platform: str, c: Convolution) -> Iterator[tuple[Layout, Run]]:
    yield by_library(platform)
    if c.groups == 1 and c.is_pointwise:
        yield as_matrix, dot
    longest = _LONGEST_DEPTHWISE_SUM if c.groups > 1 and c.depth == 1 else _LONGEST_SUM
    if c.products <= longest:
        yield by_tap, tap_sum
    if not c.is_pointwise and math.prod(c.out) * c.groups * c.products <= _MOST_PATCHES:
        yield by_group, grouped_dot
    if 1 < c.groups <= _MOST_GROUPS:
        yield as_stored, group_by_group
