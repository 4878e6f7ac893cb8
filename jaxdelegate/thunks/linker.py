"""Loads object files into memory: ELF for x86-64, with what LLVM's large code model needs of it.

Source: System V Application Binary Interface, AMD64 Architecture Processor Supplement.
"""

import ctypes
import dataclasses
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_X86_64, _RELOCATABLE = 62, 1
_SYMBOLS, _RELOCATIONS, _NOTHING = 2, 4, 8  # types of sections
_ALLOCATED, _THREAD_LOCAL = 2, 0x400  # flags of sections
_UNDEFINED = 0  # number of a section
_ABSOLUTE_64, _RELATIVE_32, _CALL_32, _RELATIVE_64 = 1, 2, 4, 24  # types of relocations
_MOST_BYTES = 1 << 28  # for a program's code: a damaged file may declare any size
_MATHEMATICS = "libm.so.6"
# Functions of the C library that XLA's code may call; the mathematical ones also with suffix f.
_MEMORY = ("memcpy", "memmove", "memset")
_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "erf"),
    *("exp", "expm1", "fmod", "hypot", "log", "log1p", "pow", "remainder", "sin", "sinh", "tan"),
    "tanh",
)
_OUTSIDE = frozenset((*_MEMORY, *_FUNCTIONS, *(f"{name}f" for name in _FUNCTIONS)))


@dataclasses.dataclass(frozen=True)
class Code:
    """Machine code in memory, which lives as long as this object."""

    memory: mmap.mmap | None
    symbols: Mapping[str, int]  # addresses


@dataclasses.dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    data: memoryview
    size: int
    link: int
    info: int
    alignment: int


class _ObjectFile:
    def __init__(self, data: memoryview) -> None:
        if bytes(data[:6]) != b"\x7fELF\x02\x01":
            raise ValueError("not an ELF file of 64 bits")
        kind, machine = struct.unpack_from("<HH", data, 16)
        if (kind, machine) != (_RELOCATABLE, _X86_64):
            raise ValueError("not an object file for x86-64")
        (first,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        rows = [struct.unpack_from("<IIQQQQIIQQ", data, first + size * i) for i in range(count)]
        start, length = rows[names][4:6]
        strings = data[start : start + length]
        self.sections = [
            _Section(
                name=_name(strings, name),
                kind=kind,
                flags=flags,
                data=data[0:0] if kind == _NOTHING else data[offset : offset + size],
                size=size,
                link=link,
                info=info,
                alignment=max(alignment, 1),
            )
            for name, kind, flags, _, offset, size, link, info, alignment, _ in rows
        ]

    @property
    def loaded(self) -> list[int]:
        """The sections that the code needs, without exception tables: the code never throws."""
        return [
            number
            for number, section in enumerate(self.sections)
            if section.flags & _ALLOCATED and section.name != ".eh_frame"
        ]

    def symbols(self) -> list[tuple[str, int, int]]:
        """Names, numbers of their sections, and offsets there."""
        (table,) = (s for s in self.sections if s.kind == _SYMBOLS)
        strings = self.sections[table.link].data
        return [
            (_name(strings, name), section, value)
            for name, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", table.data)
        ]

    def relocations(self, section: int) -> list[tuple[int, int, int, int]]:
        """Offsets in the section, types, symbols and addends."""
        return [
            (offset, info & 0xFFFFFFFF, info >> 32, addend)
            for table in self.sections
            if table.kind == _RELOCATIONS and table.info == section
            for offset, info, addend in struct.iter_unpack("<QQq", table.data)
        ]


def load(files: Sequence[memoryview]) -> Code:
    """Link object files and make them executable; a ValueError or OSError if that is not possible.

    The bytes are run as machine code: use only trusted ones.
    """
    linker = _Linker([_ObjectFile(file) for file in files])
    if linker.size == 0:
        return Code(None, MappingProxyType({}))
    memory = mmap.mmap(-1, linker.size)
    symbols = linker.load(memory)
    _make_executable(_address(memory), linker.size)
    return Code(memory, MappingProxyType(symbols))


class _Linker:
    def __init__(self, objects: Sequence[_ObjectFile]) -> None:
        """Lay out the sections one after the other."""
        self._objects = objects
        self._places: dict[tuple[int, int], int] = {}  # offsets by numbers of file and section
        self.size = 0
        for number, one in enumerate(objects):
            for index in one.loaded:
                section = one.sections[index]
                if section.flags & _THREAD_LOCAL:
                    raise ValueError(f"{section.name}: variables of threads")
                self.size += -self.size % section.alignment
                self._places[number, index] = self.size
                self.size += section.size
        if self.size > _MOST_BYTES:
            raise ValueError(f"{self.size} bytes of machine code")

    def load(self, memory: mmap.mmap) -> dict[str, int]:
        """Copy the sections and relocate them; the addresses of all symbols."""
        start = _address(memory)
        for (number, index), offset in self._places.items():
            data = self._objects[number].sections[index].data
            memory[offset : offset + len(data)] = data
        symbols: dict[str, int] = {}
        for number, one in enumerate(self._objects):
            known = {}
            for position, (name, section, value) in enumerate(one.symbols()):
                if section == _UNDEFINED and name in _OUTSIDE:
                    known[position] = _outside(name)
                elif (number, section) in self._places:
                    known[position] = start + self._places[number, section] + value
                    symbols[name] = known[position]
            self._relocate(memory, start, number, known)
        return symbols

    def _relocate(
        self, memory: mmap.mmap, start: int, number: int, known: Mapping[int, int]
    ) -> None:
        one = self._objects[number]
        for index in one.loaded:
            for offset, kind, symbol, addend in one.relocations(index):
                if symbol not in known:
                    raise ValueError(f"the symbol {one.symbols()[symbol][0]} is not known")
                at = self._places[number, index] + offset
                _relocate(memory, start, at, kind, known[symbol] + addend)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _outside(name: str) -> int:
    libraries = [ctypes.CDLL(None), ctypes.CDLL(_MATHEMATICS)]
    function = next(getattr(one, name) for one in libraries if hasattr(one, name))
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _relocate(memory: mmap.mmap, start: int, at: int, kind: int, value: int) -> None:
    place = start + at
    if kind == _ABSOLUTE_64:
        struct.pack_into("<Q", memory, at, value)
    elif kind == _RELATIVE_64:
        struct.pack_into("<q", memory, at, value - place)
    elif kind in (_RELATIVE_32, _CALL_32):
        try:
            struct.pack_into("<i", memory, at, value - place)
        except struct.error:
            raise ValueError("a symbol is too far away") from None
    else:
        raise ValueError(f"an unknown relocation {kind}")


def _make_executable(start: int, size: int) -> None:
    """No longer writable. An OSError where the system forbids it."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if library.mprotect(start, size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _name(strings: memoryview, start: int) -> str:
    rest = bytes(strings[start : start + 4096])
    return rest[: rest.index(0)].decode()
