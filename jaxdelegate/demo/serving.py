"""Starts the demo's page, which sends nothing to other machines."""

import importlib
import os
import tempfile

from jaxdelegate.optional import optional_module


def serve(host: str = "127.0.0.1", port: int | None = None) -> None:
    """Serve the page until Ctrl-C; its files are in a temporary folder.

    Host 0.0.0.0 accepts other machines; without a port it is the first free one starting with 7860.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    with tempfile.TemporaryDirectory(prefix="jaxdelegate-demo-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        for name in ("PIL", "gradio"):
            optional_module(name, "web")
        importlib.import_module("jaxdelegate.demo.web").launch(folder, host, port)
