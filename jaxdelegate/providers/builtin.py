"""The delegates that tools offer, and their flags.

JaxDelegate's options are flags, `--jax_<option>`. TFLite's flags (tools/delegates/*_provider.cc)
keep their names and defaults; one table says which of them are aliases of an option.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers.parsing import Flag, FlagValues, flags_of

_PREFIX = "jax_"


@runtime_checkable
class DelegateProvider(Protocol):
    """Creates a delegate from flags.

    The first of its flags requests the delegate: its place on the command line decides when the
    delegate is applied.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def flags(self) -> Any:
        """Flag records; absl.flags.Flag objects are accepted too."""
        ...

    def create(self, flag_values: Any) -> Any | None:
        """A delegate if the flags request one; `flag_values` has all flags as attributes."""
        ...


@dataclasses.dataclass
class BuiltinProvider:
    name: str  # TFLite's
    declared: tuple[Flag, ...]
    create: Callable[[FlagValues], Any | None]  # None if the flags do not request the delegate

    def flags(self) -> tuple[Flag, ...]:
        return self.declared


class _Alias(NamedTuple):
    name: str
    default: Any
    option: str
    label: str
    note: str = ""
    convert: Callable[[Any], Any] = lambda value: value  # None leaves the option unset

    @property
    def is_for_gpu(self) -> bool:
        return self.name.startswith("gpu_")

    @property
    def flag(self) -> Flag:
        text = f"TFLite's name of --{_PREFIX}{self.option}. {self.note}".strip()
        return Flag(self.name, type(self.default), self.default, text, label=self.label)


def _count(value: int) -> int:
    return max(0, value)  # TFLite: negative numbers too mean no limit


_ALIASES = (
    _Alias(
        "max_delegated_partitions", 0, "max_delegated_partitions",
        "Max number of delegated partitions", convert=_count,
    ),
    _Alias(
        "min_nodes_per_partition", 0, "min_nodes_per_partition", "Min nodes per partition",
        convert=_count,
    ),
    _Alias(
        "first_delegate_node_index", 0, "first_delegate_node_index",
        "Index of the first node that could be delegated",
    ),
    _Alias(
        "last_delegate_node_index", 2**31 - 1, "last_delegate_node_index",
        "Index of the last node that could be delegated",
    ),
    _Alias("require_full_delegation", False, "require_full_delegation", "Require full delegation"),
    _Alias(
        "delegate_serialize_dir", "", "serialization_dir",
        "Directory for delegate serialization", "The token is optional.",
        lambda folder: folder or None,
    ),
    _Alias(
        "delegate_serialize_token", "", "model_token",
        "Model-specific token/key for delegate serialization.",
        convert=lambda token: token or None,
    ),
    _Alias(
        "gpu_precision_loss_allowed", True, "is_precision_loss_allowed",
        "Allow lower precision in gpu", "As in TFLite, true with --use_gpu.",
    ),
    _Alias(
        "gpu_experimental_enable_quant", True, "enable_quant",
        "Enable running quant models in gpu", "Unlike in TFLite, false switches it off.",
    ),
    _Alias(
        "gpu_inference_for_sustained_speed", False, "inference_preference",
        "Prefer maximizing the throughput in gpu", "True: sustained_speed.",
        lambda sustained: "sustained_speed" if sustained else "fast_single_answer",
    ),
)  # fmt: skip


def aliases(option: str) -> tuple[str, ...]:
    return tuple(row.name for row in _ALIASES if row.option == option)


def jax_options(values: Any) -> DelegateOptions:
    """JaxDelegate's options from the flags.

    An option has the flag `--jax_<option>`, and may have a name of TFLite's. Names that begin with
    `gpu_` count with `--use_gpu`, or if they were given.
    """
    options: dict[str, Any] = {}
    for row in _ALIASES:
        value = row.convert(getattr(values, row.name))
        counts = values.use_gpu or not row.is_for_gpu or values.is_set(row.name)
        if counts and value is not None:
            _check_both_names(row, value, values)
            options[row.option] = value
    for field in dataclasses.fields(DelegateOptions):
        if values.is_set(_PREFIX + field.name):
            options[field.name] = getattr(values, _PREFIX + field.name)
    return DelegateOptions.of(options)


def _check_both_names(row: _Alias, value: Any, values: Any) -> None:
    ours = _PREFIX + row.option
    both = values.is_set(row.name) and values.is_set(ours)
    if both and getattr(values, ours) != value:
        raise OptionError(
            f"--{row.name}={getattr(values, row.name)} and --{ours}={getattr(values, ours)} are "
            "two names of one option with different values; give one"
        )


def _with_aliases(flag: Flag) -> Flag:
    names = " and ".join(f"--{name}" for name in aliases(flag.name.removeprefix(_PREFIX)))
    return dataclasses.replace(flag, help=f"{flag.help} TFLite's name: {names}.") if names else flag


def jax_delegate(values: FlagValues) -> Any:
    from jaxdelegate.delegate.jax_delegate import JaxDelegate  # noqa: PLC0415 (imports jax)

    return JaxDelegate(jax_options(values))


def _gpu_delegate(values: FlagValues) -> Any | None:
    if not values.use_gpu:
        return None
    if jax_options(values).platform is not None:
        return jax_delegate(values)
    try:
        return jax_delegate(values.replaced(jax_platform="gpu"))
    except OptionError as error:
        raise OptionError(
            f"--use_gpu: {error}. --jax_platform=cpu runs the same options on the CPU"
        ) from error


def _check_xnnpack(values: FlagValues) -> None:
    """XNNPACK is created by the stock interpreter, so some options cannot reach it."""
    for flag in _XNNPACK_FLAGS[1:]:
        value = values[flag.name]
        if value != flag.default:
            raise OptionError(
                f"{flag.name}: the stock interpreter's Python API cannot set it, got {value!r}"
            )


def _external_delegate(values: FlagValues) -> Any | None:
    path = values.external_delegate_path
    if not path:
        return None
    options = external_options(values.external_delegate_options)
    from jaxdelegate import litert  # noqa: PLC0415 (imports ai_edge_litert)

    try:
        return litert.load_delegate(path, options)
    except ValueError as error:  # what the stock function raises
        raise OptionError(f"external_delegate_path: {error}") from error


def external_options(text: str) -> dict[str, str]:
    """`key:value;key:value` as a dictionary; values may contain colons."""
    items = [item for item in text.split(";") if item]
    for item in items:
        if ":" not in item:
            raise OptionError(
                f"external_delegate_options: expected key:value;key:value, got {item!r} in {text!r}"
            )
    pairs = (item.split(":", 1) for item in items)
    return {key.strip(): value.strip() for key, value in pairs}


_XNNPACK_FLAGS = (
    Flag(
        "use_xnnpack", bool, None,
        "Run in the stock interpreter with XNNPACK, applied after all other delegates; "
        "false: in the stock interpreter without XNNPACK.",
        label="Use xnnpack",
    ),
    *(
        Flag(
            name, type(default), default,
            f"Refused if {when}: the stock interpreter's Python API cannot set it.",
            label=label,
        )
        for name, default, when, label in (
            ("xnnpack_force_fp16", False, "true", ""),
            ("xnnpack_weight_cache_file_path", "", "set", ""),
            ("xnnpack_runtime_flags", 0, "set", "Extra flags for XNNPACK runtime"),
        )
    ),
)  # fmt: skip

COMMON = BuiltinProvider(  # creates no delegate
    "Default-NoDelegate",
    (
        Flag(
            "num_threads", int, -1,
            "CPU threads: of the stock interpreter, and of XLA on the CPU (per process; only "
            "before jax is loaded). -1: the library's choice.",
            label="Num threads",
        ),
        Flag(
            "interpreter", str, None,
            "Which interpreter runs the model: jaxdelegate's, or the stock one of "
            "ai_edge_litert with the delegates applied to it. Unset: litert if a flag needs it, "
            "otherwise jaxdelegate.",
            ("jaxdelegate", "litert"),
        ),
        Flag(
            "disable_delegate_clustering", bool, False,
            "Form partitions in execution order only. For --interpreter=litert; "
            "jaxdelegate's interpreter always clusters.",
            label="Disable delegate clustering",
        ),
        *(row.flag for row in _ALIASES if not row.is_for_gpu),
        Flag(
            "gpu_invoke_loop_times", int, -1,
            "Accepted, without effect: TFLite compiles it in only on request.",
            label="Number of GPU delegate invoke loop iterations",
        ),
    ),
    lambda _values: None,
)  # fmt: skip
GPU = BuiltinProvider(
    "GPU",
    (
        Flag(
            "use_gpu", bool, False,
            "Apply JaxDelegate on the GPU, with the defaults of TFLite's GPU delegate tools "
            "(precision loss allowed). Without a GPU: an error; --jax_platform=cpu runs the same "
            "options on the CPU.",
            label="Use gpu",
        ),
        *(row.flag for row in _ALIASES if row.is_for_gpu),
        Flag(
            "gpu_backend", str, "",
            "cl or gl in TFLite. Accepted, without effect: XLA is the only backend.",
            ("", "cl", "gl"), label="GPU backend",
        ),
        Flag(
            "gpu_wait_type", str, "",
            "Accepted, without effect: invoke always waits for the results.",
            ("", "passive", "active", "do_not_wait", "aggressive"), label="GPU delegate wait type",
        ),
    ),
    _gpu_delegate,
)  # fmt: skip
JAX = BuiltinProvider(
    "JAX",
    (
        Flag(
            "use_jax", bool, None,
            "Apply JaxDelegate. Unset: yes, unless another delegate or --use_xnnpack is given. "
            "False, without another delegate: the numpy reference runs the model.",
        ),
        *map(_with_aliases, flags_of(DelegateOptions, _PREFIX)),
    ),
    lambda values: jax_delegate(values) if values.use_jax and not values.use_gpu else None,
)  # fmt: skip
XNNPACK = BuiltinProvider("XNNPACK", _XNNPACK_FLAGS, _check_xnnpack)
EXTERNAL = BuiltinProvider(
    "EXTERNAL",
    (
        Flag(
            "external_delegate_path", str, "",
            "A shared library with TFLite's external delegate interface (for "
            "--interpreter=litert), or package.module:Class, a SimpleDelegate.",
            label="External delegate path",
        ),
        Flag(
            "external_delegate_options", str, "",
            "Its options: key:value;key:value. What follows the first colon is the value.",
            label="External delegate options",
        ),
    ),
    _external_delegate,
)  # fmt: skip
BUILTIN: tuple[DelegateProvider, ...] = (COMMON, GPU, JAX, XNNPACK, EXTERNAL)
