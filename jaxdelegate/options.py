"""The delegate's options, for the Python API, command-line flags and load_delegate strings."""

import dataclasses
import difflib
import math
import os
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.text import either

Platform = Literal["gpu", "tpu", "cpu"]
Priority = Literal["auto", "max_precision", "min_latency", "min_memory_usage"]
Preference = Literal["fast_single_answer", "sustained_speed", "balanced"]
ComputeDtype = Literal["float32", "tensorfloat32", "float16", "bfloat16", "auto"]
QuantMode = Literal["auto", "float_view", "integer"]
GpuLoops = Literal["host", "tried", "graph", "unrolled"]
KVCacheDtype = Literal["auto", "float32", "float16", "bfloat16", "int8_per_token_head"]

# The environment variable that sets the default of the option native_kernels.
NATIVE_KERNELS = "JAXDELEGATE_NATIVE_KERNELS"
# Those of what no GPU has judged yet, off by default (docs/gpu.md).
GPU_LOOPS = "JAXDELEGATE_GPU_LOOPS"
EARLY_COPIES = "JAXDELEGATE_EARLY_COPIES"
PINNED_INPUTS = "JAXDELEGATE_PINNED_INPUTS"
SPLIT_PRODUCTS = "JAXDELEGATE_SPLIT_PRODUCTS"

# Values in other tools -> our values, for error messages.
_OTHER_VALUES = {
    "fp32": "float32",
    "f32": "float32",
    "tf32": "tensorfloat32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "cuda": "gpu",
    "nvidia": "gpu",
    "int8": "integer",
    "int": "integer",
    "float": "float_view",
}
# Names of options in other tools -> our names, for error messages.
_OTHER_NAMES = {
    "precision": "compute_dtype",
    "dtype": "compute_dtype",
    "fp16": "compute_dtype",
    "device": "platform",
    "backend": "platform",
    "cache_dir": "serialization_dir",
    "cache": "serialization_dir",
    "quantize": "quant_mode",
    "experimental_flags": "enable_quant",
}
_Record = TypeVar("_Record")
_NOT_NEGATIVE = (
    "device_index",
    "max_delegated_partitions",
    "max_program_bytes",
    "min_nodes_per_partition",
)
_TRUE = frozenset(("true", "1", "yes", "on"))
_FALSE = frozenset(("false", "0", "no", "off"))


def _option(default: Any, doc: str, *, keyed: bool = False) -> Any:
    """A field; a `keyed` one changes the compiled program and is part of the cache key."""
    return dataclasses.field(default=default, metadata={"help": doc, "keyed": keyed})


def _documented(cls: type[_Record]) -> type[_Record]:
    """Add the fields' help to the docstring of a dataclass, for help() and editors."""
    rows = (
        f"        {field.name}: {field.metadata['help']} Default: {field.default!r}."
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
    )
    cls.__doc__ = "\n".join([f"{cls.__doc__}\n\n    Attributes:", *rows])
    return cls


@_documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class DelegateOptions:
    """Options of JaxDelegate, with the names of TfLiteGpuDelegateOptionsV2 where it has them."""

    platform: Platform | None = _option(
        None, "Where partitions run; unset: JAX's default.", keyed=True
    )
    device_index: int = _option(0, "Which device of the platform.", keyed=True)
    is_precision_loss_allowed: bool | None = _option(
        None,
        "Allow reduced precision (float16 or bfloat16) where that is safe; overrides the "
        "priorities, as in TFLite. Unset: the priorities decide.",
        keyed=True,
    )
    inference_priority1: Priority = _option(
        "max_precision",
        "The most important goal; 'auto' is not allowed. With max_precision everything is float32.",
        keyed=True,
    )
    inference_priority2: Priority = _option(
        "auto", "The second goal; 'auto': chosen as in TFLite.", keyed=True
    )
    inference_priority3: Priority = _option(
        "auto", "The third goal; 'auto': the remaining one.", keyed=True
    )
    inference_preference: Preference = _option(
        "fast_single_answer",
        "sustained_speed: measure alternative algorithms on the device (autotuning); balanced: use "
        "stored autotuning results, measure nothing; fast_single_answer: use the defaults.",
        keyed=True,
    )
    compute_dtype: ComputeDtype | None = _option(
        None,
        "The dtype of arithmetic; overrides the priorities. 'auto': the platform's reduced "
        "precision, but float32 for the operators that it would make wrong.",
        keyed=True,
    )
    accumulate_float32: bool | None = _option(
        None,
        "Accumulate in float32 even if the operands have reduced precision. Unset: yes. CPUs "
        "always do.",
        keyed=True,
    )
    float32_operators: str | None = _option(
        None,
        "Indices of operators that stay in float32 in every compute_dtype: '3,17'. With "
        "compute_dtype 'auto' this list replaces the automatic check.",
        keyed=True,
    )
    enable_quant: bool = _option(
        True, "Delegate quantized operators; false: they run on the CPU.", keyed=True
    )
    quant_mode: QuantMode = _option(
        "auto",
        "Quantized operators run in integers, or in fake-quantized floats (float_view). auto: in "
        "integers where these are faster on a CPU, in floats elsewhere and in jaxdelegate.load.",
        keyed=True,
    )
    rewrites: str = _option(
        "all",
        "Rewrites of the graph before compilation: 'all', 'none', or comma-separated names.",
        keyed=True,
    )
    native_kernels: bool | None = _option(
        None,
        "Use jaxdelegate's C++ CPU kernels (convolutions, matrix products, attention, means), and "
        "on a GPU its Triton kernels (depthwise convolutions, int8 products), on a TPU its kernel "
        "for updates of caches; "
        "false: XLA computes everything. Unset: the environment variable "
        "JAXDELEGATE_NATIVE_KERNELS (0 or 1) decides; without it, they are used if they were built "
        "and the processor has AVX2.",
        keyed=True,
    )
    max_delegated_partitions: int = _option(
        0, "How many partitions may be delegated, largest first; 0: no limit."
    )
    min_nodes_per_partition: int = _option(0, "Leave smaller partitions on the CPU.")
    min_gain: float = _option(
        2.0,
        "If some operators stay on the CPU: also leave a partition there if the CPU would need "
        "less than this many times what a call, its tensors and its operators cost in any case "
        "(both are estimated; with 2 a device that is twice as fast breaks even). 0: delegate "
        "every supported operator. Ignored if first_ or last_delegate_node_index selects the "
        "operators.",
    )
    first_delegate_node_index: int = _option(0, "Delegate no operator before this one.")
    last_delegate_node_index: int = _option(2**31 - 1, "Delegate no operator after this one.")
    require_full_delegation: bool = _option(
        False, "Raise DelegationError if any operator would stay on the CPU."
    )
    fallback_on_error: bool = _option(
        False, "If a partition cannot be compiled, warn and run it on the CPU."
    )
    serialization_dir: str | None = _option(
        None,
        "The directory for compiled programs; unset: they are not stored, except those of language "
        "models, in ~/.cache/jaxdelegate.",
    )
    max_programs: int = _option(
        16,
        "For how many input shapes the compiled program of each partition stays in memory. The "
        "least recently used one is evicted, and compiled again, or read from serialization_dir, "
        "when its shapes come back.",
    )
    max_program_bytes: int = _option(
        1 << 30,
        "How many bytes of machine code and weights the programs for other input shapes may hold. "
        "Beyond it, the least recently used programs are evicted. Weights that the current program "
        "uses, too, do not count.",
    )
    model_token: str | None = _option(
        None, "Identifies the model in the cache; unset: a fingerprint of the model."
    )
    donate_inputs: bool = _option(
        False, "Let programs overwrite their input buffers on the device.", keyed=True
    )
    rebatch: bool = _option(
        False,
        "Run batches on a model whose graph fixes a batch of 1, or mixes the images of a batch: "
        "resized to n, it computes n single runs. Only in jaxdelegate's interpreter.",
    )
    pad_batch: bool = _option(
        False,
        "Compile for batches of 1, 2, 4, 8, ... only: other batches are computed in the next "
        "larger one. An error names the operator if the graph may mix the items of a batch. "
        "Only in jaxdelegate's interpreter.",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "compute_dtype", _dtype_name(self.compute_dtype))
        if isinstance(self.serialization_dir, os.PathLike):
            object.__setattr__(self, "serialization_dir", os.fspath(self.serialization_dir))
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name), hints[field.name])
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise OptionError(f"{name}: must not be negative, got {getattr(self, name)}")
        if self.max_programs < 1:
            raise OptionError(f"max_programs: must be at least 1, got {self.max_programs}")
        if not 0 <= self.min_gain < math.inf:
            raise OptionError(f"min_gain: must be >= 0, got {self.min_gain}")
        self._check_priorities()
        self._check_operators()

    def _check_operators(self) -> None:
        names = [] if self.float32_operators is None else self.float32_operators.split(",")
        wrong = next((n for n in names if n.strip() and not n.strip().isdecimal()), None)
        if wrong is not None:
            raise OptionError(f"float32_operators: expected numbers such as '3,17', got {wrong!r}")

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    def _check_priorities(self) -> None:
        order = (self.inference_priority1, self.inference_priority2, self.inference_priority3)
        first_auto = order.index("auto") if "auto" in order else len(order)
        given = order[:first_auto]
        if first_auto == 0 or any(p != "auto" for p in order[first_auto:]):
            raise OptionError(
                "inference_priority1..3: 'auto' must come after all other priorities, got "
                f"{', '.join(order)}"
            )
        if len(set(given)) != len(given):
            raise OptionError(
                f"inference_priority1..3: a priority is repeated, got {', '.join(order)}"
            )

    @classmethod
    def of(cls, options: "Mapping[str, Any] | DelegateOptions | None", **more: Any) -> Self:
        """Options from a mapping or an instance, with overrides.

        Raises:
            OptionError: an unknown name; the message suggests the closest known ones.
            TypeError: `options` is neither.
        """
        if isinstance(options, DelegateOptions):
            given = dataclasses.asdict(options)
        elif options is None or isinstance(options, Mapping):
            given = dict(options or {})
        else:
            raise TypeError(
                f"options: expected a dictionary such as {{'platform': 'cpu'}}, got "
                f"{type(options).__name__}; single options have names: platform='cpu'"
            )
        given.update(more)
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
                close = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else close
                hint = (
                    f"did you mean: {', '.join(close)}?" if close else f"known: {', '.join(known)}"
                )
                raise OptionError(f"unknown option {name!r}; {hint}")
        return cls(**given)

    @classmethod
    def from_strings(cls, options: Mapping[str, str]) -> Self:
        """Options from strings, as `load_delegate` and `--external_delegate_options` give them.

        Raises:
            OptionError: an unknown name, or a string that cannot be parsed as the option's type.
        """
        hints = get_type_hints(cls)
        return cls.of(
            {name: _parse(name, text, hints.get(name, str)) for name, text in options.items()}
        )


def native_kernels_by_default() -> bool | None:
    """The default of native_kernels from JAXDELEGATE_NATIVE_KERNELS; None: it is not set."""
    return _switch(NATIVE_KERNELS)


def is_on(switch: str) -> bool:
    """Whether a switch other than GPU_LOOPS is set to 1; an OptionError: it is neither 0 nor 1."""
    return bool(_switch(switch))


def gpu_loops() -> GpuLoops:
    """How a GPU is to run decode loops: JAXDELEGATE_GPU_LOOPS, by default step by step."""
    value: Any = os.environ.get(GPU_LOOPS) or "host"
    _check(GPU_LOOPS, value, GpuLoops)
    chosen: GpuLoops = value
    return chosen


def checked_kv_cache_dtype(value: Any) -> KVCacheDtype:
    """A language model's `kv_cache_dtype`; an OptionError: it is none."""
    _check("kv_cache_dtype", value, KVCacheDtype)
    chosen: KVCacheDtype = value
    return chosen


def _switch(name: str) -> bool | None:
    text = os.environ.get(name, "")
    value = _parse(name, text, bool | None)
    if not isinstance(value, bool | None):
        raise OptionError(f"{name}: must be 0 or 1, got {text!r}")
    return value


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return (hint,)
    return get_args(hint) or (hint,)


def _dtype_name(value: Any) -> Any:
    is_dtype = isinstance(value, np.dtype | type) or hasattr(value, "dtype")  # jax.numpy.bfloat16
    if value is None or isinstance(value, str) or not is_dtype:
        return value
    try:
        return np.dtype(value).name
    except TypeError:
        return value


def _check(name: str, value: Any, hint: Any) -> None:
    for alternative in _alternatives(hint):
        if get_origin(alternative) is Literal:
            if value in get_args(alternative):
                return
        elif type(value) is alternative or (alternative is float and type(value) is int):
            return
    meant = _OTHER_VALUES.get(value) if isinstance(value, str) else None
    remedy = f"; did you mean {meant!r}?" if meant in _choices(hint) else ""
    raise OptionError(f"{name}: expected {_describe(hint)}, got {value!r}{remedy}")


def _choices(hint: Any) -> list[Any]:
    literals = [a for a in _alternatives(hint) if get_origin(a) is Literal]
    return [choice for literal in literals for choice in get_args(literal)]


def _describe(hint: Any) -> str:
    words = []
    for alternative in _alternatives(hint):
        if get_origin(alternative) is Literal:
            words += [repr(v) for v in get_args(alternative)]
        else:
            words.append("None" if alternative is type(None) else alternative.__name__)
    return either(words)


def _parse(name: str, text: str, hint: Any) -> Any:
    alternatives = _alternatives(hint)
    if type(None) in alternatives and text.lower() in ("", "none"):
        return None
    if bool in alternatives and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    number = int if int in alternatives else float if float in alternatives else None
    if number is not None:
        try:
            return number(text)
        except ValueError:
            raise OptionError(f"{name}: expected {_describe(hint)}, got {text!r}") from None
    return text
