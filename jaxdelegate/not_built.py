"""Why a compiled library is missing: setup.py writes the reason to a file in its place."""

from pathlib import Path

from jaxdelegate.text import printable, shortened

_LONGEST = 300  # characters of a compiler's error: templates of C++ make long ones
_REMEDY = (
    "To build it, install jaxdelegate from its source: "
    "pip install --force-reinstall --no-deps FOLDER; in a clone: make clean demo"
)


def why_missing(library: Path) -> str:
    """The reason and a remedy, without a full stop."""
    try:
        reason = library.with_suffix(".not_built.txt").read_text("utf-8", "replace").strip()
    except OSError:
        return f"{library.name} is missing, and there is no record of a build. {_REMEDY}"
    return f"{library.name} was not built: {shortened(printable(reason), _LONGEST)}. {_REMEDY}"
