"""Starts the demo's page, which sends nothing to other machines."""

import importlib
import os
import tempfile

from jaxdelegate.errors import OptionError

_NEEDED = ("gradio", "PIL")


def serve(host: str = "127.0.0.1", port: int | None = None) -> None:
    """Serve the page until Ctrl-C.

    Uploads and the page's pictures are in a temporary folder that is removed at the end.

    Args:
        host: the address to listen on; 0.0.0.0 accepts other machines.
        port: None: the first free port starting with 7860.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    with tempfile.TemporaryDirectory(prefix="jaxdelegate-demo-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        try:
            web = importlib.import_module("jaxdelegate.demo.web")
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _NEEDED:
                raise
            raise OptionError(
                f"--web needs {package}, which is not installed: pip install 'jaxdelegate[web]'"
            ) from None
        web.launch(folder, host, port)
