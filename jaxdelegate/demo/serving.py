"""Starts the demo's page, which sends nothing to other machines."""

import importlib
import os
import tempfile

from jaxdelegate.errors import OptionError

_NEEDED = ("gradio", "PIL")


def serve(host: str = "127.0.0.1", port: int | None = None) -> None:
    """Serve the page until Ctrl-C; its files are in a temporary folder.

    Host 0.0.0.0 accepts other machines; without a port it is the first free one starting with 7860.
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
