"""The sample tasks, or your own .tflite file, as a page for a browser.

    pip install '.[web]'
    python examples/web_demo [--port=PORT] [--host=0.0.0.0]

Serves the page until Ctrl-C, on 127.0.0.1 unless --host changes that; 0.0.0.0 accepts other
machines. The page sends nothing to other machines, and its files are in a temporary folder.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.optional import optional_module
from jaxdelegate.options import NATIVE_KERNELS

sys.path.insert(0, str(Path(__file__).parents[1]))  # sample_tasks and web_demo are there

FLAGS = flags.FLAGS
flags.DEFINE_integer("port", None, "Unset: the first free port from 7860.", 1, 65535)
flags.DEFINE_string("host", "127.0.0.1", "The address to listen on; 0.0.0.0: all.")
flags.DEFINE_bool("jax_native_kernels", None, "Whether the CPU kernels in C++ are used.")


def main(arguments: Sequence[str]) -> None:
    if arguments[1:]:
        sys.exit(f"web_demo: unexpected argument {arguments[1]!r}; flags begin with --")
    if FLAGS.jax_native_kernels is not None:
        os.environ[NATIVE_KERNELS] = str(int(FLAGS.jax_native_kernels))
    try:
        serve(FLAGS.host, FLAGS.port)
    except (JaxDelegateError, OSError) as error:
        sys.exit(f"web_demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)  # as shells report SIGINT


def serve(host: str, port: int | None) -> None:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    with tempfile.TemporaryDirectory(prefix="jaxdelegate-demo-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        for name in ("PIL", "gradio"):
            optional_module(name, "web")
        importlib.import_module("web_demo.web").launch(folder, host, port)


if __name__ == "__main__":
    app.define_help_flags()
    main(app.parse_flags_with_usage(sys.argv))  # app.run would log what jax and jaxdelegate do
