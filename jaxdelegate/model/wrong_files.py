"""Recognizes files that are not TFLite models, and says how to convert them."""

import os

_CONVERT = "convert it with tf.lite.TFLiteConverter"
_LITERT_TORCH = "convert the PyTorch model with litert_torch"

# The first bytes of a file -> its format, and what to do.
_SIGNATURES = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file: run `git lfs pull`"),
    (b"PK\x03\x04", "a ZIP archive (a .task bundle, a .keras file or a download): unpack it first"),
    (b"\x1f\x8b", "compressed by gzip: unpack it first"),
    (b"\x89HDF", f"an HDF5 file, probably of Keras: {_CONVERT}.from_keras_model"),
    (b"<", "a web page or XML: the download returned a page; download the file itself"),
    (b"{", "JSON: an error message of a download, or a TensorFlow.js model"),
    (b"\x7fELF", "a shared library or program"),
)
_SUFFIXES = {
    ".onnx": f"an ONNX file: {_LITERT_TORCH}, or the ONNX file with onnx2tf",
    ".pt": f"a PyTorch file: {_LITERT_TORCH}",
    ".pth": f"a PyTorch file: {_LITERT_TORCH}",
    ".pb": f"a TensorFlow graph: {_CONVERT}",
    ".h5": f"a Keras file: {_CONVERT}.from_keras_model",
    ".keras": f"a Keras file: {_CONVERT}.from_keras_model",
}


def hint(name: str, beginning: bytes) -> str:
    """A hint for a message about a file of this name and with these first bytes; may be empty."""
    found = _SUFFIXES.get(os.path.splitext(name)[1].lower())
    if found is None:
        text = beginning.lstrip(b"\xef\xbb\xbf \t\r\n")
        found = next((what for start, what in _SIGNATURES if text.startswith(start)), None)
    return "" if found is None else f"; it looks like {found}"


def folder(path: str) -> str:
    """What to do with a folder instead of a file."""
    if os.path.exists(os.path.join(path, "saved_model.pb")):
        return f"it is a TensorFlow SavedModel: {_CONVERT}.from_saved_model"
    models = sorted(name for name in os.listdir(path) if name.endswith((".tflite", ".lite")))
    if not models:
        return "it is a folder; name the .tflite file"
    more = f" and {len(models) - 3} more" if len(models) > 3 else ""
    return f"it is a folder; name a file in it: {', '.join(models[:3])}{more}"
