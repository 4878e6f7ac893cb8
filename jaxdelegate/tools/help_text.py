"""What `jaxdelegate <tool> --help` prints."""

from collections.abc import Sequence

from absl import flags

DELEGATES = "delegates"  # the module name under which delegate_flags declares the providers' flags
_OTHER = ("jaxdelegate.tools.main", "absl.flags")


def of_tool(name: str, what: str, values: flags.FlagValues, actions: Sequence[str] = ()) -> str:
    """The tool's usage, its flags, those of delegates, and those that every tool has.

    Args:
        name: the tool's.
        what: what it does, in a reason.
        values: with its flags declared.
        actions: words of which one must be given.
    """
    modules = sorted(values.flags_by_module_dict())
    own = [m for m in modules if m not in (DELEGATES, *_OTHER)]
    own.sort(key=lambda module: not module.endswith(f".{name}"))
    word = f" {'|'.join(actions)}" if actions else ""
    parts = [
        f"jaxdelegate {name}: {what}",
        f"usage: jaxdelegate {name}{word} [--flags]",
        _section("Flags", values, own),
    ]
    if DELEGATES in modules:
        parts.append(_section("Flags of the delegates and interpreters", values, [DELEGATES]))
    parts.append(_section("Flags of all tools", values, _OTHER))
    return "\n\n".join(parts)


def _section(title: str, values: flags.FlagValues, modules: Sequence[str]) -> str:
    """The texts that absl has of some modules' flags, without the modules' names."""
    texts = [values.module_help(module).strip().partition("\n")[2] for module in modules]
    return "\n".join([f"{title}:", *texts])
