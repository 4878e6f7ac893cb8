"""For which platforms a trace is lowered, and how: a program for each, chosen when XLA compiles.

A CPU has algorithms of its own (tap sums, Winograd, blocks), which no other device should run, and
which are as good in gradients: on a Zen 4, MobileNet v1 takes a third of the time that it takes
with XLA:CPU's convolutions (bench/gradients.py). All others get the neutral form, plain
convolutions and products, which XLA fuses and differentiates well everywhere; a delegate's programs
for a GPU write small convolutions out, for inference only. What is traced on a machine that has
only a CPU may still be compiled or exported for another: so the trace holds both forms, and
`jax.lax.platform_dependent` leaves one of them in each program.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jax import lax

from jaxdelegate.compile import precision_policy
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.errors import OptionError
from jaxdelegate.kernels.processor import cpu_features
from jaxdelegate.op_lowering.rule import LoweringContext

DEFAULT = "default"
# jax's names of platforms, as exports take them, and what rules call them.
PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "gpu": "gpu", "tpu": "tpu"}
_NEUTRAL = "tpu"  # whose rules write nothing out that a library or a compiler knows by name


def contexts(compiler: Compiler, platform: str | None) -> dict[str, LoweringContext]:
    """The lowering contexts of a trace, by jax's platform; `DEFAULT`: of every other one.

    Args:
        compiler: for functions that JAX transforms.
        platform: the only one to lower for; None: the options' platform, or whatever XLA will
            compile for.

    Raises:
        OptionError: an unknown platform.
    """
    if platform is not None:
        if platform not in PLATFORMS:
            raise OptionError(f"platform: want one of {', '.join(PLATFORMS)}, got {platform!r}")
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
        precision = precision_policy.policy_for(compiler.options, platform, cpu_features())
    return dataclasses.replace(
        own,
        platform="cpu" if platform == "cpu" else _NEUTRAL,
        precision=precision,
        native_kernels=False,
        native_bfloat16=False,
        triton_kernels=False,
    )


def for_platform(forms: Mapping[str, Callable[..., Any]], *arguments: Any) -> Any:
    """What the form of the platform that XLA compiles for makes of the arguments.

    Args:
        forms: by jax's platform, or `DEFAULT`; all of them answer the same shapes and dtypes.
        *arguments: arrays, or pytrees of them.
    """
    if list(forms) == [DEFAULT]:
        return forms[DEFAULT](*arguments)
    return lax.platform_dependent(*arguments, **forms)
