"""The delegates that tools offer by themselves, and their flags.

JaxDelegate's options are flags, `--jax_<option>`. TFLite's flags (tools/delegates/*_provider.cc)
keep their names and defaults; those that mean the same as an option are its aliases, in one table.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers.parsing import Flag, FlagValues

_PREFIX = "jax_"


@runtime_checkable
class DelegateProvider(Protocol):
    """Makes a delegate from flags.

    The first of its flags is the one that asks for the delegate: where it stands on the command
    line decides when the delegate is applied.
    """

    name: str

    def flags(self) -> Any:
        """The flags it declares: Flag records; absl.flags.Flag objects are accepted too."""
        ...

    def create(self, flag_values: Any) -> Any | None:
        """A delegate if the flags ask for one; `flag_values` has all flags as attributes."""
        ...


def _same(value: Any) -> Any:
    return value


def _count(value: int) -> int:
    return max(0, value)  # TFLite: negative numbers too mean no limit


def _if_any(value: str) -> str | None:
    return value or None


def _sustained(value: bool) -> str:
    return "sustained_speed" if value else "fast_single_answer"


@dataclasses.dataclass(frozen=True)
class _Alias:
    """A flag of TFLite's, and the option of JaxDelegate that it is another name of.

    Attributes:
        flag: TFLite's.
        option: of JaxDelegate; empty: the flag is accepted without effect.
        convert: from the flag's value to the option's; None leaves the option alone.
    """

    flag: Flag
    option: str = ""
    convert: Callable[[Any], Any] = _same


def _alias(
    name: str, default: Any, option: str, note: str = "", convert: Callable[[Any], Any] = _same
) -> _Alias:
    text = f"TFLite's name of --{_PREFIX}{option}. {note}".strip()
    return _Alias(Flag(name, type(default), default, text), option, convert)


_FOR_ALL = (
    _alias("max_delegated_partitions", 0, "max_delegated_partitions", convert=_count),
    _alias("min_nodes_per_partition", 0, "min_nodes_per_partition", convert=_count),
    _alias("first_delegate_node_index", 0, "first_delegate_node_index"),
    _alias("last_delegate_node_index", 2**31 - 1, "last_delegate_node_index"),
    _alias("require_full_delegation", False, "require_full_delegation"),
    _alias(
        "delegate_serialize_dir", "", "serialization_dir", "The token is optional.", _if_any
    ),
    _alias("delegate_serialize_token", "", "model_token", convert=_if_any),
    _Alias(
        Flag(
            "gpu_invoke_loop_times", int, -1,
            "Accepted, without effect: TFLite compiles it in only on request.",
        )
    ),
)  # fmt: skip
_FOR_GPU = (
    _alias(
        "gpu_precision_loss_allowed", True, "is_precision_loss_allowed",
        "As in TFLite, true with --use_gpu.",
    ),
    _alias(
        "gpu_experimental_enable_quant", True, "enable_quant",
        "Unlike in TFLite, false switches it off.",
    ),
    _alias(
        "gpu_inference_for_sustained_speed", False, "inference_preference",
        "True: sustained_speed.", _sustained,
    ),
    _Alias(
        Flag(
            "gpu_backend", str, "",
            "cl or gl in TFLite. Accepted, without effect: XLA is the only backend.",
            ("", "cl", "gl"),
        )
    ),
    _Alias(
        Flag(
            "gpu_wait_type", str, "",
            "Accepted, without effect: invoke waits until the results are there.",
            ("", "passive", "active", "do_not_wait", "aggressive"),
        )
    ),
)  # fmt: skip


def aliases(option: str) -> tuple[str, ...]:
    """TFLite's flags that are other names of an option of JaxDelegate."""
    return tuple(row.flag.name for row in (*_FOR_ALL, *_FOR_GPU) if row.option == option)


def jax_options(values: Any) -> DelegateOptions:
    """JaxDelegate's options as the flags say.

    An option has its own flag, `--jax_<option>`, and may have a name of TFLite's. `--gpu_...`
    count with `--use_gpu`, or if they were given.

    Raises:
        OptionError: an impossible value or combination, or both names with different values.
    """
    options: dict[str, Any] = {}
    for row in (*_FOR_ALL, *_FOR_GPU):
        if row in _FOR_ALL or values.use_gpu or values.is_set(row.flag.name):
            options.update(_said(row, values))
    for field in dataclasses.fields(DelegateOptions):
        if values.is_set(_PREFIX + field.name):
            options[field.name] = getattr(values, _PREFIX + field.name)
    return DelegateOptions.of(options)


def _said(row: _Alias, values: Any) -> Mapping[str, Any]:
    """What a flag of TFLite's says of its option."""
    given = getattr(values, row.flag.name)
    value = row.convert(given) if row.option else None
    if value is None:
        return {}
    own = _PREFIX + row.option
    if values.is_set(row.flag.name) and values.is_set(own) and getattr(values, own) != value:
        raise OptionError(
            f"--{row.flag.name}={given} and --{own}={getattr(values, own)} are two names of one "
            "option with different values; give one"
        )
    return {row.option: value}


def _jax_flags() -> tuple[Flag, ...]:
    """One flag for each field of DelegateOptions."""
    hints = get_type_hints(DelegateOptions)
    return tuple(
        Flag(
            _PREFIX + field.name,
            *_type_and_default(hints[field.name], field.default),
            _with_aliases(field.metadata.get("help", ""), field.name),
            _choices(hints[field.name]),
        )
        for field in dataclasses.fields(DelegateOptions)
    )


def _with_aliases(text: str, option: str) -> str:
    names = " and ".join(f"--{name}" for name in aliases(option))
    return f"{text} TFLite's name: {names}." if names else text


def _type_and_default(hint: Any, default: Any) -> tuple[type, Any]:
    alternatives = get_args(hint) if get_origin(hint) is not Literal else ()
    types = [a for a in alternatives or (hint,) if a in (bool, int, float)]
    return (types[0] if types else str), default


def _choices(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    literals = [a for a in get_args(hint) if get_origin(a) is Literal]
    return get_args(literals[0]) if literals else ()


class CommonFlags:
    """Flags that every delegate and host shares; makes no delegate itself."""

    name = "Default-NoDelegate"

    def flags(self) -> tuple[Flag, ...]:
        """Threads, host, partitions, serialization."""
        return (
            Flag(
                "num_threads", int, -1,
                "CPU threads: of the stock interpreter, and of XLA on the CPU (per process; only "
                "before jax is loaded). -1: the library's choice.",
            ),
            Flag(
                "interpreter", str, None,
                "Which interpreter runs the model: jaxdelegate's, or the stock one of "
                "ai_edge_litert with the delegates applied to it. Unset: jaxdelegate, but litert "
                "where a flag asks for something that only it can run.",
                ("jaxdelegate", "litert"),
            ),
            Flag(
                "disable_delegate_clustering", bool, False,
                "Form partitions in execution order only. For --interpreter=litert; "
                "jaxdelegate's interpreter always clusters.",
            ),
            *(row.flag for row in _FOR_ALL),
        )  # fmt: skip

    def create(self, flag_values: Any) -> None:  # noqa: ARG002 (the protocol's)
        """Nothing."""
        return


class GpuProvider:
    """`--use_gpu`: JaxDelegate as TFLite's tools set up their GPU delegate."""

    name = "GPU"

    def flags(self) -> tuple[Flag, ...]:
        """`use_gpu`, and TFLite's names for what it does."""
        use = Flag(
            "use_gpu", bool, False,
            "Apply JaxDelegate on the GPU, with the defaults of TFLite's GPU delegate tools "
            "(precision loss allowed). Without a GPU: an error; --jax_platform=cpu runs the same "
            "options on the CPU.",
        )  # fmt: skip
        return (use, *(row.flag for row in _FOR_GPU))

    def create(self, flag_values: FlagValues) -> Any | None:
        """JaxDelegate with `--use_gpu`.

        Raises:
            OptionError: an impossible value or combination, or there is no GPU.
        """
        if not flag_values.use_gpu:
            return None
        options = jax_options(flag_values)
        from jaxdelegate.delegate import jax_delegate  # noqa: PLC0415 (imports jax)

        if options.platform is not None:
            return jax_delegate.JaxDelegate(options)
        try:
            return jax_delegate.JaxDelegate(options, platform="gpu")
        except OptionError as error:
            raise OptionError(
                f"--use_gpu: {error}. --jax_platform=cpu runs the same options on the CPU"
            ) from error


class JaxProvider:
    """`--use_jax`: JaxDelegate with its own options; what tools apply if nothing else is asked."""

    name = "JAX"

    def flags(self) -> tuple[Flag, ...]:
        """`use_jax`, and one flag for each option."""
        use = Flag(
            "use_jax", bool, None,
            "Apply JaxDelegate. Unset: yes, unless another delegate or --use_xnnpack is given. "
            "False, without another delegate: the numpy reference runs the model.",
        )  # fmt: skip
        return (use, *_jax_flags())

    def create(self, flag_values: FlagValues) -> Any | None:
        """JaxDelegate with `--use_jax`; `--use_gpu` already is one.

        Raises:
            OptionError: an impossible value or combination.
        """
        if not flag_values.use_jax or flag_values.use_gpu:
            return None
        return self.default(flag_values)

    def default(self, flag_values: FlagValues) -> Any:
        """JaxDelegate without being asked.

        Raises:
            OptionError: an impossible value or combination.
        """
        from jaxdelegate.delegate.jax_delegate import JaxDelegate  # noqa: PLC0415

        return JaxDelegate(jax_options(flag_values))


class XnnpackProvider:
    """`--use_xnnpack`: the stock interpreter's default delegate, which it applies by itself."""

    name = "XNNPACK"

    def flags(self) -> tuple[Flag, ...]:
        """`use_xnnpack`, and TFLite's names for what it does."""
        return (
            Flag(
                "use_xnnpack", bool, None,
                "Run in the stock interpreter with XNNPACK, applied after all other delegates; "
                "false: in the stock interpreter without XNNPACK.",
            ),
            Flag(
                "xnnpack_force_fp16", bool, False,
                "Refused if true: the stock interpreter's Python API cannot set it.",
            ),
            Flag(
                "xnnpack_weight_cache_file_path", str, "",
                "Refused if set: the stock interpreter's Python API cannot set it.",
            ),
            Flag(
                "xnnpack_runtime_flags", int, 0,
                "Refused if set: the stock interpreter's Python API cannot set it.",
            ),
        )  # fmt: skip

    def create(self, flag_values: Any) -> None:
        """Nothing: the interpreter creates it.

        Raises:
            OptionError: an option that cannot be handed to it.
        """
        for flag in self.flags()[1:]:
            value = getattr(flag_values, flag.name)
            if value != flag.default:
                raise OptionError(
                    f"{flag.name}: the stock interpreter's Python API cannot set it, got {value!r}"
                )


class ExternalProvider:
    """`--external_delegate_path`: a library, or a class in Python."""

    name = "EXTERNAL"

    def flags(self) -> tuple[Flag, ...]:
        """The path and the options."""
        return (
            Flag(
                "external_delegate_path", str, "",
                "A shared library with TFLite's external delegate interface (for "
                "--interpreter=litert), or package.module:Class, a SimpleDelegate.",
            ),
            Flag(
                "external_delegate_options", str, "",
                "Its options: key:value;key:value. What follows the first colon is the value.",
            ),
        )  # fmt: skip

    def create(self, flag_values: Any) -> Any | None:
        """The delegate with `--external_delegate_path`.

        Raises:
            OptionError: options that do not read as such, or that the delegate refuses.
            OSError: there is no such library.
        """
        path = flag_values.external_delegate_path
        if not path:
            return None
        options = external_options(flag_values.external_delegate_options)
        from jaxdelegate import litert  # noqa: PLC0415 (imports ai_edge_litert)

        try:
            return litert.load_delegate(path, options)
        except ValueError as error:  # what the stock function raises
            raise OptionError(f"external_delegate_path: {error}") from error


def external_options(text: str) -> dict[str, str]:
    """`key:value;key:value` as a dictionary; values may hold colons.

    Raises:
        OptionError: an item without a colon.
    """
    items = [item for item in text.split(";") if item]
    for item in items:
        if ":" not in item:
            raise OptionError(
                f"external_delegate_options: want key:value;key:value, got {item!r} in {text!r}"
            )
    pairs = (item.split(":", 1) for item in items)
    return {key.strip(): value.strip() for key, value in pairs}
