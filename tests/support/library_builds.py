"""Builds of the compiled libraries with one small kernel, by the real setup.py."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = "jaxdelegate/kernels/libjaxdelegate_kernels.so"
KERNEL = "jaxdelegate/kernels/kernel.cc"
GOOD = 'extern "C" int good() { return 1; }\n'


def source(folder: Path) -> Path:
    """Fill a folder with what the build needs."""
    for room in ("kernels", "litert"):
        (folder / "jaxdelegate" / room).mkdir(parents=True)
    names = ("setup.py", "pyproject.toml", "LICENSE", "README.md", "jaxdelegate/version.py")
    for path in (*(ROOT / name for name in names), *(ROOT / "jaxdelegate/litert").glob("*.[ch]")):
        shutil.copy(path, folder / path.relative_to(ROOT))
    (folder / KERNEL).write_text(GOOD)
    return folder


def build(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build the libraries in their place, as an editable installation does."""
    variables = {k: v for k, v in os.environ.items() if k != "JAXDELEGATE_REQUIRE_LIBRARIES"}
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext", *(arguments or ("--inplace",))],
        cwd=folder,
        env={**variables, "CC": "gcc", "CXX": "g++", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
