"""How much is logged, as `litert_lm` sets it."""

import enum
import logging

_LOGGER = logging.getLogger("jaxdelegate")


class LogSeverity(enum.IntEnum):
    """What is logged: this and what is graver."""

    VERBOSE = 0
    DEBUG = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5
    SILENT = 1000


_LEVELS = {
    LogSeverity.VERBOSE: logging.DEBUG,
    LogSeverity.DEBUG: logging.DEBUG,
    LogSeverity.INFO: logging.INFO,
    LogSeverity.WARNING: logging.WARNING,
    LogSeverity.ERROR: logging.ERROR,
    LogSeverity.FATAL: logging.CRITICAL,
    LogSeverity.SILENT: logging.CRITICAL + 1,
}


def set_min_log_severity(severity: LogSeverity) -> None:
    """Set the level of the logger `jaxdelegate`, for the whole process."""
    _LOGGER.setLevel(_LEVELS[LogSeverity(severity)])
