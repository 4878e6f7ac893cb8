"""Delegates written in Python for the stock interpreters: ai_edge_litert >= 1.4, tf.lite >= 2.20.

Any SimpleDelegate can be in their `experimental_delegates`; see `docs/stock_interpreters.md`.
"""

from jaxdelegate.litert.library import library_path, load_delegate, runtime_path
from jaxdelegate.litert.native import native_pointer

__all__ = ["library_path", "load_delegate", "native_pointer", "runtime_path"]
