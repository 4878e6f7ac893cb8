"""A table whose rows stand in several modules, each imported when one of its rows is asked for."""

import importlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import TypeVar

_Row = TypeVar("_Row")


class LazyTable(MutableMapping[str, _Row]):
    """Rows by name, in the order in which their names were given.

    Names are known at once: neither iteration, `in` nor `len` imports anything. Threads may ask for
    rows of one module at the same time: Python imports it once, and none of them sees half of it.
    """

    def __init__(
        self,
        package: str,
        attribute: str,
        modules: Mapping[str, Sequence[str]],
        *,
        in_module: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Know the names.

        Args:
            package: of the modules.
            attribute: what each module calls its own rows, a mapping by name.
            modules: the names of each module's rows, by the module's name in the package.
            in_module: the modules that go by another name.

        Raises:
            ValueError: two modules claim one name.
        """
        self._attribute = attribute
        self._modules = {
            name: f"{package}.{in_module.get(module, module)}"
            for module, names in modules.items()
            for name in names
        }
        if len(self._modules) != sum(map(len, modules.values())):
            raise ValueError(f"{package}: a name stands twice in the table of {attribute}")
        self._rows: dict[str, _Row] = {}

    def __getitem__(self, name: str) -> _Row:
        if name not in self._rows and name in self._modules:
            rows = getattr(importlib.import_module(self._modules[name]), self._attribute)
            self._rows.setdefault(name, rows[name])
        return self._rows[name]

    def __setitem__(self, name: str, row: _Row) -> None:
        self._rows[name] = row

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._modules.pop(name, None)
        self._rows.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter({**self._modules, **self._rows})

    def __len__(self) -> int:
        return len({**self._modules, **self._rows})

    def __repr__(self) -> str:
        return f"<{len(self)} {self._attribute}>"
