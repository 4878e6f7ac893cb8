"""The version, in a file that the build reads without importing the package."""

__version__ = "0.1.0.dev0"
