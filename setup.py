"""What pyproject.toml cannot say: a C library without Python's headers, if it can be built.

jaxdelegate/litert/libjaxdelegate.so is what stock `load_delegate` loads. It fits every Python, so
one wheel serves all of a platform. Without a C compiler everything else still installs.
"""

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

STUB = Extension(
    "jaxdelegate.litert.libjaxdelegate",
    ["jaxdelegate/litert/stub.c"],
    extra_compile_args=["-std=c99", "-fvisibility=hidden"],
    optional=True,
)


class BuildLibrary(build_ext):
    """Builds a plain shared library: no suffix of one Python's, no module initialization."""

    def get_ext_filename(self, fullname: str) -> str:
        """The file's name, the same everywhere."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:  # noqa: ARG002 (setuptools' API)
        """None: the library marks its own."""
        return []


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of the platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-PLATFORM."""
        return ("py3", "none", super().get_tag()[2])


setup(ext_modules=[STUB], cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel})
