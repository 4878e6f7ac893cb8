"""What pyproject.toml cannot say: libraries without Python's headers, if they can be built.

Two in C are what stock `load_delegate` and LiteRT's CompiledModel load; one in C++ holds kernels
that XLA:CPU calls. They fit every Python, so one wheel serves all of a platform. Without a compiler
everything else still installs.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = "jaxdelegate/litert"
LIBRARIES = {
    "jaxdelegate.litert.libjaxdelegate": "stub.c",
    "jaxdelegate.litert.libLiteRtGpuAccelerator": "accelerator.c",
}
KERNELS = Path("jaxdelegate/kernels")
KERNEL_FLAGS = [
    *("-std=c++17", "-O3", "-fvisibility=hidden", "-fno-rtti"),
    *("-ffp-contract=fast", "-fno-trapping-math"),  # fused products, maxima without branches
    "-fwrapv",  # sums of integers
    "-g0",  # Python was built with -g, perhaps; every start would hash what that adds
]


class BuildLibrary(build_ext):
    """Builds plain shared libraries: no suffix of one Python's, no module initialization."""

    def get_ext_filename(self, fullname: str) -> str:
        """The file's name, the same everywhere."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:  # noqa: ARG002 (setuptools' API)
        """None: the libraries mark their own."""
        return []


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of the platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-PLATFORM."""
        return ("py3", "none", super().get_tag()[2])


def paths(pattern: str) -> list[str]:
    """The kernels' files, relative and in one order."""
    return sorted(path.as_posix() for path in KERNELS.glob(pattern))


setup(
    ext_modules=[
        Extension(
            "jaxdelegate.kernels.libjaxdelegate_kernels",
            paths("*.cc"),
            depends=[*paths("*.h"), *paths("*.inc")],
            extra_compile_args=KERNEL_FLAGS,
            language="c++",
            optional=True,
        ),
        *(
            Extension(
                name,
                [f"{FOLDER}/{source}"],
                depends=[f"{FOLDER}/plugin.h"],
                extra_compile_args=["-std=c99", "-fvisibility=hidden"],
                optional=True,
            )
            for name, source in LIBRARIES.items()
        ),
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
