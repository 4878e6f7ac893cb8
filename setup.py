"""Builds the shared libraries, which pyproject.toml cannot describe.

Two C libraries are loaded by stock `load_delegate` and by LiteRT's CompiledModel; a C++ library,
for x86-64, has the kernels that XLA:CPU calls. None uses Python's headers, so one wheel works with
every Python of a platform. Without a compiler the rest still installs, and the build reports what
is missing.
"""

import importlib.util
import os
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = "jaxdelegate/litert"
LIBRARIES = {
    "jaxdelegate.litert.libjaxdelegate": "stub.c",
    "jaxdelegate.litert.libLiteRtGpuAccelerator": "accelerator.c",
}
KERNELS = Path("jaxdelegate/kernels")
# No flag names an instruction set: files of kernels do so themselves, function by function
# (kernels/target.h).
KERNEL_FLAGS = [
    *("-std=c++2a", "-O3", "-fvisibility=hidden", "-fno-rtti"),  # C++20, by the name in GCC 8 and 9
    *("-ffp-contract=off", "-fno-trapping-math"),  # products are fused where the source says so
    "-fwrapv",  # sums of integers
    "-g0",  # Python was built with -g, perhaps; every start would hash what that adds
]
# Wheels must have all libraries: `make wheel` sets it.
OPTIONAL = os.environ.get("JAXDELEGATE_REQUIRE_LIBRARIES", "0") == "0"
MISSING = {
    "libjaxdelegate_kernels": "convolutions and matrix products on the CPU are slower (by XLA)",
    "libjaxdelegate": "tf.lite.experimental.load_delegate cannot load the delegate",
    "libLiteRtGpuAccelerator": "LiteRT's CompiledModel cannot use the delegate",
}


class BuildLibrary(build_ext):
    """Builds plain shared libraries, without a Python suffix or module initialization."""

    def run(self) -> None:
        """Build the libraries, and report those that cannot be built."""
        super().run()
        names = [extension.name.rpartition(".")[2] for extension in self.extensions]
        paths = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        missing = [name for name, path in zip(names, paths, strict=True) if not path.exists()]
        if missing:
            lost = "; ".join(f"without {name}.so, {MISSING[name]}" for name in missing)
            self.warn(f"jaxdelegate is built without what needs a C and a C++ compiler: {lost}")

    def build_extensions(self) -> None:
        """Build the libraries; the files of each compile at once, one for each processor."""
        compile_all = self.compiler.compile

        def compile_at_once(sources: list[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_all([source], **options), sources)
                return [path for paths in objects for path in paths]

        self.compiler.compile = compile_at_once
        super().build_extensions()

    def get_ext_filename(self, fullname: str) -> str:
        """The file name, the same for every Python."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:  # noqa: ARG002 (setuptools' API)
        """None, because the libraries mark their exported symbols."""
        return []


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of the platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-PLATFORM."""
        return ("py3", "none", super().get_tag()[2])


def paths(pattern: str) -> list[str]:
    """The source files of the kernels, relative and sorted."""
    return sorted(path.as_posix() for path in KERNELS.glob(pattern))


def kernels() -> list[Extension]:
    """The library of kernels, on supported processors."""
    if not sysconfig.get_platform().endswith("x86_64"):
        return []
    jaxlib = importlib.util.find_spec("jaxlib")
    places = [] if jaxlib is None else jaxlib.submodule_search_locations or []
    return [
        Extension(
            "jaxdelegate.kernels.libjaxdelegate_kernels",
            paths("*.cc"),
            depends=[*paths("*.h"), *paths("*.inc")],
            include_dirs=[f"{place}/include" for place in places],  # jax.ffi.include_dir()
            extra_compile_args=KERNEL_FLAGS,
            language="c++",
            optional=OPTIONAL,
        )
    ]


def package_dir() -> dict[str, str]:
    """Where packages are: below the root, by the links in jaxdelegate/.

    So an editable install is one entry of the path. With a mapping it would be an import hook, and
    Python asks that too late where the clone itself, a folder of the package's name, is in reach.
    """
    linked = ("op_lowering", "quant")
    if all(Path("jaxdelegate", name).is_dir() for name in linked):
        return {"": "."}
    return {f"jaxdelegate.{name}": name for name in linked}  # a checkout without links


setup(
    package_dir=package_dir(),
    ext_modules=[
        *kernels(),
        *(
            Extension(
                name,
                [f"{FOLDER}/{source}"],
                depends=[f"{FOLDER}/plugin.h"],
                extra_compile_args=["-std=c99", "-fvisibility=hidden", "-g0"],  # no folder's name
                optional=OPTIONAL,
            )
            for name, source in LIBRARIES.items()
        ),
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
