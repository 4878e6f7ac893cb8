"""Files that flags ask for, looked at before the long work and not after it."""

import os
from collections.abc import Iterable
from pathlib import Path

from absl import flags

from jaxdelegate.errors import OptionError


def check(values: flags.FlagValues, names: Iterable[str]) -> None:
    """Make sure that the files of these flags can be made.

    Raises:
        OptionError: one cannot.
    """
    for name in names:
        path = values[name].value
        if not path:
            continue
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise OptionError(f"{name}: {path}: no such folder")
        if Path(path).is_dir() or not os.access(folder, os.W_OK):
            raise OptionError(f"{name}: {path}: cannot be written")
