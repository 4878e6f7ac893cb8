"""Recognizes files that are not TFLite models, and says how to get one."""

import os
import re
from collections.abc import Iterable

_CONVERT = "convert it with tf.lite.TFLiteConverter"
_LITERT_TORCH = "convert the PyTorch model with litert_torch"
_KERAS = f"a Keras file: {_CONVERT}.from_keras_model"
_PYTORCH = f"a PyTorch file: {_LITERT_TORCH}"
_GGUF = f"a language model for llama.cpp (GGUF): {_LITERT_TORCH}, from its original weights"
_WEIGHTS = f"weights without a network (safetensors): {_LITERT_TORCH}"
_C_ARRAY = (
    "C source of a model's bytes: look for the .tflite that it was made from, or load "
    "bytes(int(n, 16) for n in re.findall('0x(\\\\w+)', text))"
)
# The beginning of what a download left in place of any file -> what to do.
_DOWNLOADS = (
    (rb"version https://git-lfs", "a Git LFS pointer, not the file: run `git lfs pull`"),
    (rb"<", "a web page or XML: the download returned a page; download the file itself"),
    (rb"\{", "JSON: an error message of a download, or a TensorFlow.js model"),
)
_SUFFIXES = {
    ".onnx": f"an ONNX file: {_LITERT_TORCH}, or the ONNX file with onnx2tf",
    ".pt": _PYTORCH,
    ".pth": _PYTORCH,
    ".pb": f"a TensorFlow graph: {_CONVERT}.from_saved_model, of its folder",
    ".h5": _KERAS,
    ".keras": _KERAS,
    ".gguf": _GGUF,
    ".safetensors": _WEIGHTS,
    **dict.fromkeys((".c", ".cc", ".cpp", ".h"), _C_ARRAY),
}
# How a file begins -> its format, and what to do.
_BEGINNINGS = (
    (rb"PK\x03\x04", "a ZIP archive without a .tflite file in it"),
    (rb"\x1f\x8b", "compressed by gzip: unpack it first"),
    (rb"\x89HDF", f"an HDF5 file, probably of Keras: {_CONVERT}.from_keras_model"),
    (rb"GGUF", _GGUF),
    (rb".{4}\0{4}\{", _WEIGHTS),
    (rb"\s*(/[/*]|#include|#pragma|alignas|(static )?(const )?unsigned char)", _C_ARRAY),
    (rb"\x7fELF", "a shared library or program"),
)


def hint(name: str, beginning: bytes) -> str:
    """A hint for a message about a file of this name and with these first bytes; may be empty."""
    found = (
        _by_beginning(_DOWNLOADS, beginning.lstrip(b"\xef\xbb\xbf \t\r\n"))
        or _SUFFIXES.get(os.path.splitext(name)[1].lower())
        or _by_beginning(_BEGINNINGS, beginning)
    )
    if found is None:
        return ""
    return f"; it looks like {found}"


def _by_beginning(table: Iterable[tuple[bytes, str]], content: bytes) -> str | None:
    return next((what for start, what in table if re.match(start, content, re.DOTALL)), None)


def folder(path: str) -> str:
    """What to do with a folder instead of a file."""
    if os.path.exists(os.path.join(path, "saved_model.pb")):
        return f"it is a TensorFlow SavedModel: {_CONVERT}.from_saved_model"
    models = sorted(name for name in os.listdir(path) if name.endswith((".tflite", ".lite")))
    if not models:
        return "it is a folder; name the .tflite file"
    more = f" and {len(models) - 3} more" if len(models) > 3 else ""
    return f"it is a folder; name a file in it: {', '.join(models[:3])}{more}"
