"""The delegate registrar: providers, which create delegates from flags.

The counterpart of TFLite's tools/delegates/delegate_provider.h. Tools declare every provider's
flags, and apply the delegates in the order of the flags that requested them.

A package adds its provider with an entry point of the group `jaxdelegate.delegate_providers` that
names a provider or its class; a program calls `register_delegate_provider`.
"""

import dataclasses
import functools
import importlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdelegate.errors import InterpreterError, JaxDelegateError, ModelError, OptionError
from jaxdelegate.model.source import interpreter_arguments
from jaxdelegate.providers.builtin import BUILTIN, JAX, DelegateProvider, jax_delegate
from jaxdelegate.providers.parsing import Flag, FlagValues
from jaxdelegate.simple_delegate import SimpleDelegate

__all__ = [
    "DelegateProvider",
    "Flag",
    "FlagValues",
    "ProvidedDelegate",
    "create_delegates",
    "flag_values",
    "open_interpreter",
    "register_delegate_provider",
    "registered",
]

_LOGGER = logging.getLogger("jaxdelegate")
_GROUP = "jaxdelegate.delegate_providers"
_PROVIDERS: list[DelegateProvider] = [*BUILTIN]


@dataclasses.dataclass(frozen=True)
class ProvidedDelegate:
    provider: DelegateProvider
    delegate: Any


def register_delegate_provider(provider: DelegateProvider) -> None:
    """Offer a delegate in every tool of this process.

    Args:
        provider: an object with `name`, `flags()` and `create(flag_values) -> delegate | None`, or
            a class whose constructor takes no arguments.

    Raises:
        TypeError: the provider lacks one of these.
        ValueError: the name or a flag is already in use.
    """
    if isinstance(provider, type):
        provider = provider()
    if not isinstance(provider, DelegateProvider):
        raise TypeError(
            "a delegate provider has name, flags() and create(flag_values), got "
            f"{type(provider).__name__}"
        )
    for other in _PROVIDERS:
        if other.name == provider.name:
            raise ValueError(f"delegate provider {provider.name!r} is already registered")
        taken = {flag.name for flag in declared(other)} & {flag.name for flag in declared(provider)}
        if taken:
            raise ValueError(
                f"delegate provider {provider.name!r}: flag {min(taken)!r} belongs to {other.name}"
            )
    _PROVIDERS.append(provider)


def registered() -> tuple[DelegateProvider, ...]:
    """All providers: built-in ones, those of installed packages, and registered ones."""
    _load_installed()
    return tuple(_PROVIDERS)


@functools.cache
def _load_installed() -> None:
    for entry in importlib.metadata.entry_points(group=_GROUP):
        try:
            register_delegate_provider(entry.load())
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            _LOGGER.warning("WARN: delegate provider %r (%s): %s", entry.name, entry.value, error)


def flag_values(**values: Any) -> FlagValues:
    """The arguments replace the command line.

    An OptionError for an unknown flag, or a value of another type.
    """
    return FlagValues.of(map(as_flag, all_flags()), values)


def all_flags() -> list[Any]:
    return [flag for provider in registered() for flag in declared(provider)]


def declared(provider: DelegateProvider) -> list[Any]:
    """A provider's flags: Flag records, or the absl.flags.Flag objects that it returns.

    Mappings and tuples are Flag's arguments; a tuple may omit the type, which is then that of the
    default.
    """
    return [_record(provider.name, flag) for flag in provider.flags()]


def _record(provider: str, flag: Any) -> Any:
    try:
        if isinstance(flag, Mapping):
            return Flag(**flag)
        if isinstance(flag, tuple):
            return Flag(*_with_type(*flag))
    except TypeError as error:
        raise OptionError(f"delegate provider {provider!r}: flag {flag!r}: {error}") from error
    if isinstance(flag, Flag) or hasattr(flag, "parser"):
        return flag
    raise OptionError(f"delegate provider {provider!r}: expected Flag records, got {flag!r}")


def _with_type(name: str, *rest: Any) -> tuple[Any, ...]:
    if not rest or isinstance(rest[0], type):
        return name, *rest
    return name, str if rest[0] is None else type(rest[0]), *rest  # as absl's DEFINE_* take them


def as_flag(flag: Any) -> Flag:
    """A declared flag as a Flag; the parser of an absl.flags.Flag says its type and choices."""
    if isinstance(flag, Flag):
        return flag
    kind = {"bool": bool, "int": int, "float": float}.get(flag.parser.flag_type(), str)
    choices = tuple(getattr(flag.parser, "enum_values", ()))
    return Flag(flag.name, kind, flag.default, flag.help or "", choices)


def create_delegates(values: FlagValues) -> list[ProvidedDelegate]:
    """The delegates that the flags request, in the order of the command line.

    JaxDelegate if they request none, unless they request XNNPACK or no delegate (`use_jax=False`).
    """
    use_threads(values.num_threads)
    created = [ProvidedDelegate(p, _create(p, values)) for p in registered()]
    requested = [row for row in created if row.delegate is not None]
    if not requested and values.use_jax is None and not values.is_set("use_xnnpack"):
        return [ProvidedDelegate(JAX, jax_delegate(values))]
    return sorted(requested, key=lambda row: _position(row.provider, values))


def _create(provider: DelegateProvider, values: FlagValues) -> Any | None:
    try:
        return provider.create(values)
    except JaxDelegateError:
        raise
    except ValueError as error:  # a value that a third-party delegate refuses
        raise OptionError(f"{provider.name} delegate: {error}") from error


def _position(provider: DelegateProvider, values: FlagValues) -> int:
    """The position of the provider's first flag; if it is absent, of its first flag there."""
    positions = [values.position(flag.name) for flag in declared(provider)] or [0]
    return positions[0] or min(filter(None, positions), default=0)


def requires_full_delegation(values: FlagValues) -> bool:
    """Either name of the flag sets it; it holds for delegates of any kind."""
    return bool(values.require_full_delegation or values.jax_require_full_delegation)


def use_threads(count: int) -> None:
    """XLA reads the number from the environment when it starts."""
    if count != -1 and count < 1:
        raise OptionError(f"num_threads: must be -1 or at least 1, got {count}")
    if count == -1 or os.environ.get("NPROC") == str(count):
        return
    if "jax" in sys.modules:
        _LOGGER.warning("WARN: num_threads=%d has no effect on XLA: jax is already imported", count)
    else:
        os.environ["NPROC"] = str(count)


def interpreter_name(values: FlagValues, delegates: Sequence[Any]) -> str:
    """Either "jaxdelegate" or "litert"."""
    stock_only = [type(d).__name__ for d in delegates if not isinstance(d, SimpleDelegate)]
    if values.use_xnnpack is not None:
        stock_only.append("use_xnnpack")
    if values.interpreter == "jaxdelegate" and stock_only:
        raise OptionError(
            f"interpreter: {stock_only[0]} needs the stock interpreter (litert), got 'jaxdelegate'"
        )
    return str(values.interpreter or ("litert" if stock_only else "jaxdelegate"))


def open_interpreter(
    values: FlagValues,
    model: str | os.PathLike[str] | bytes,
    delegates: Sequence[Any],
    *,
    preserve_all_tensors: bool = False,
) -> Any:
    """The interpreter that the flags request, with delegates applied.

    The values are those of all providers' flags; delegates claim operators in their order. An
    OptionError if `interpreter` contradicts another flag, a DelegationError if full delegation is
    required and a delegate does not support an operator; the stock interpreter raises
    InterpreterError.
    """
    arguments: dict[str, Any] = {
        "experimental_delegates": list(delegates) or None,
        "num_threads": values.num_threads if values.num_threads > 0 else None,
        "experimental_preserve_all_tensors": preserve_all_tensors,
    }
    if interpreter_name(values, delegates) == "jaxdelegate":
        from jaxdelegate.interpreter import Interpreter  # noqa: PLC0415

        return Interpreter(**arguments, **interpreter_arguments(model))
    stock = importlib.import_module("ai_edge_litert.interpreter")
    if values.use_xnnpack is False:
        resolver = stock.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        arguments["experimental_op_resolver_type"] = resolver
    if values.disable_delegate_clustering:
        arguments["experimental_disable_delegate_clustering"] = True
    try:
        return stock.Interpreter(**arguments, **interpreter_arguments(model, stock=True))
    except ValueError as error:
        raise ModelError(str(error)) from error
    except RuntimeError as error:  # a delegate refuses the graph
        raise InterpreterError(str(error)) from error


def open_on_devices(
    values: FlagValues, model: str | os.PathLike[str] | bytes, count: int
) -> list[Any]:
    """An interpreter on each of the first devices of the platform that the flags choose.

    A count of 0 is all devices of this process. An OptionError if there are fewer, the flags do not
    request JaxDelegate, or `jax_device_index` names one device.
    """
    if values.is_set("jax_device_index"):
        raise OptionError(
            "num_devices takes the first devices of a platform, and jax_device_index="
            f"{values.jax_device_index} names one; give one of them"
        )
    from jaxdelegate.delegate.jax_delegate import JaxDelegate  # noqa: PLC0415 (for a count only)

    delegates = [row.delegate for row in create_delegates(values)]
    jax_delegates = [d for d in delegates if isinstance(d, JaxDelegate)]
    if not jax_delegates:
        raise OptionError(
            "num_devices is for JaxDelegate, which the flags do not request: omit it, or use "
            "--use_jax"
        )
    import jax  # noqa: PLC0415 (tools that find their program on disk do not need it)

    available = jax.local_devices(backend=jax_delegates[0].device.platform)
    if count > len(available):
        raise OptionError(_too_many(count, available))
    return [_open_on(values, model, index) for index in range(count or len(available))]


def _open_on(values: FlagValues, model: Any, index: int) -> Any:
    chosen = values.replaced(jax_device_index=index)
    return open_interpreter(chosen, model, [row.delegate for row in create_delegates(chosen)])


def _too_many(count: int, available: list[Any]) -> str:
    platform = available[0].platform
    remedy = (
        f". To have a CPU count as {count} devices set JAX_NUM_CPU_DEVICES={count}, or "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={count}, before the tool starts"
        if platform == "cpu"
        else ""
    )
    names = ", ".join(map(str, available))
    return f"num_devices: {count} requested, but {platform} has {len(available)}: {names}{remedy}"
