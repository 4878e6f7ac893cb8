"""Says what a process waits for, if that takes long."""

import contextlib
import logging
import threading
from collections.abc import Iterator

_LOGGER = logging.getLogger("jaxdelegate")
SILENT_S = 5.0


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Log a warning, which is on stderr by default, if the block takes longer than `SILENT_S`.

    Args:
        text: what is being done, then why it takes long or what makes it faster.
    """
    timer = threading.Timer(SILENT_S, _LOGGER.warning, ("%s", text))
    timer.daemon = True  # a process that ends does not wait for it
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
