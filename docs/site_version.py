"""Shows the version in the footer of the site's pages: a reader may have those of another one."""

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Called by mkdocs."""
    found: dict[str, str] = {}
    exec((Path(config.docs_dir).parent / "jaxdelegate" / "version.py").read_text(), found)
    config.copyright = f"jaxdelegate {found['__version__']}"
    return config
