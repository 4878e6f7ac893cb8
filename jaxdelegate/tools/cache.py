"""`jaxdelegate cache list|verify|prune`: maintain a directory of compiled programs."""

from collections.abc import Sequence

from absl import flags

from jaxdelegate.cache.directory import default_folder
from jaxdelegate.cache.maintenance import (
    EntryReport,
    foreign_files,
    list_entries,
    prune,
    verify,
)
from jaxdelegate.errors import OptionError
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.text import plural, printable, wrapped
from jaxdelegate.tools import delegate_flags

ACTIONS = ("list", "verify", "prune")
OPTIONS = ("serialization_dir",)
FLAGS = (
    Flag("max_size", str, None, "prune: the size to keep: bytes, or 500M, 4G."),
    Flag("parts", bool, False, "list, verify: show the parts of each program's key."),
)

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATIONS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def run(values: flags.FlagValues, action: str) -> int:
    """Print the entries, or what was removed; returns 1 if `verify` finds damage."""
    directory = delegate_flags.options(values).serialization_dir
    if not directory:
        directory = default_folder()
        print(wrapped(f"Programs of language models in {printable(directory)}:"))
    if action == "prune":
        done = prune(directory, _bytes(values.max_size))
        count = plural(len(done.removed), "file")
        print(f"{count} removed; {_size(done.before)} -> {_size(done.after)}.")
        return 0
    rows = verify(directory) if action == "verify" else list_entries(directory)
    for model, programs in _by_model(rows).items():
        print(printable(model) or "(model not known)")
        for row in programs:
            print(wrapped(f"  {printable(_line(row, is_verified=action == 'verify'))}"))
            if values.parts:
                _print_parts(row)
    for name in foreign_files(directory):
        print(f"{printable(name)}: not part of the cache; ignored")
    bad = sum(row.problem is not None for row in rows)
    count = plural(len(rows), "program")
    print(f"{count}, {_size(sum(row.nbytes for row in rows))}; {bad} cannot be used.")
    return 1 if bad and action == "verify" else 0


def _by_model(rows: Sequence[EntryReport]) -> dict[str, list[EntryReport]]:
    programs: dict[str, list[EntryReport]] = {}
    for row in rows:
        programs.setdefault(row.model, []).append(row)
    return programs


def _line(row: EntryReport, *, is_verified: bool) -> str:
    if row.problem is not None:
        return f"{row.name[:12]}  {_size(row.nbytes)}  {_duration(row.age)} old  {row.problem}"
    state = "ok" if is_verified else f"used {_duration(row.unused)} ago"
    size = f"{_size(row.nbytes)} + {_size(row.weight_bytes)} weights"
    return f"{row.name[:12]}  {size}  {_duration(row.age)} old  {state}  {row.operators}"


def _print_parts(row: EntryReport) -> None:
    for name, part in sorted(row.parts.items()):
        print(f"      {name:16s} {part.digest[:12]}  {printable(part.text)}")


def _bytes(text: str | None) -> int:
    number, unit = (text or "")[:-1], (text or "")[-1:].upper()
    try:
        size = int(number) * _UNITS[unit] if unit in _UNITS else int(text or "")
    except ValueError:
        size = -1
    if size < 0:
        raise OptionError(f"max_size: expected bytes, or a number with K, M, G or T, got {text!r}")
    return size


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 100_000 else f"{nbytes / 1e3:.1f} kB"


def _duration(seconds: float) -> str:
    unit, length = next((row for row in _DURATIONS if seconds >= row[1]), _DURATIONS[-1])
    return f"{seconds / length:.0f} {unit}"
