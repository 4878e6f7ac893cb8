"""Lowers a trace in one form for CPUs and in a neutral form; XLA selects one when it compiles.

The form for CPUs uses algorithms (tap sums, Winograd, blocks) that suit no other device. They help
gradients as well: on a Zen 4, MobileNet v1 takes a third of the time that it takes with XLA:CPU's
convolutions (bench/gradients.py). The neutral form consists of plain convolutions and products,
which XLA fuses and differentiates well on all devices. (A delegate's programs for a GPU expand
small convolutions, which is good for inference only.) A function that is traced on a machine with
only a CPU may be compiled or exported for another device. So the trace contains both forms, and
`jax.lax.platform_dependent` selects one of them for each program.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jax import lax

from jaxdelegate.compile import precision_policy
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.op_lowering.rule import LoweringContext

DEFAULT = "default"
# jax's names of platforms, which exports accept, and those that rules use.
PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "gpu": "gpu", "tpu": "tpu"}
_NEUTRAL = "tpu"  # whose rules do not expand operators that libraries or compilers have


def contexts(compiler: Compiler, platform: str | None) -> dict[str, LoweringContext]:
    """The lowering contexts of a trace, by jax's platform; `DEFAULT` for all others.

    Args:
        compiler: the compiler for functions that JAX transforms.
        platform: the only platform to lower for; None: the options' platform, or any platform that
            XLA may compile for.
    """
    if platform is not None:
        return {DEFAULT: _on(compiler, PLATFORMS[platform])}
    own = compiler.context.platform
    if compiler.options.platform is not None or own != "cpu":
        return {DEFAULT: _on(compiler, own)}
    cpu, gpu, tpu = (_on(compiler, p) for p in ("cpu", "gpu", "tpu"))
    if tpu.precision == gpu.precision:
        return {"cpu": cpu, DEFAULT: tpu}
    return {"cpu": cpu, "cuda": gpu, "rocm": gpu, DEFAULT: tpu}


def _on(compiler: Compiler, platform: str) -> LoweringContext:
    own = compiler.context
    precision = own.precision
    if platform != own.platform:
        precision = precision_policy.policy_here(compiler.options, platform)
    return dataclasses.replace(
        own,
        platform="cpu" if platform == "cpu" else _NEUTRAL,
        precision=precision,
        native_kernels=False,
        native_bfloat16=False,
        adds_int8_products=False,
        triton_kernels=False,
        mosaic_kernels=False,
    )


def for_platform(forms: Mapping[str, Callable[..., Any]], *arguments: Any) -> Any:
    """Call the form for the platform that XLA compiles for.

    Args:
        forms: by jax's platform, or `DEFAULT`; all of them return the same shapes and dtypes.
        *arguments: arrays, or pytrees of them.
    """
    if list(forms) == [DEFAULT]:
        return forms[DEFAULT](*arguments)
    return lax.platform_dependent(*arguments, **forms)
