"""What a server takes at most."""

import dataclasses

from jaxdelegate.errors import OptionError

MEBIBYTE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of requests.

    Attributes:
        max_request_bytes: of a body, as sent and decompressed; HTTP and gRPC.
        body_timeout_s: seconds until an HTTP body has arrived; 0: no limit.
        max_held_bytes: of all HTTP bodies that arrive or are answered at a time, and of all answers
            that are sent; three times as much of all results. More wait. One alone may exceed it.

    Raises:
        OptionError: a value below these.
    """

    max_request_bytes: int = 64 * MEBIBYTE
    body_timeout_s: float = 60.0
    max_held_bytes: int = 32 * MEBIBYTE

    def __post_init__(self) -> None:
        if self.max_request_bytes < 1:
            raise OptionError(f"max_request_bytes: want at least 1, got {self.max_request_bytes}")
        if self.max_held_bytes < 1:
            raise OptionError(f"max_held_bytes: want at least 1, got {self.max_held_bytes}")
        if not self.body_timeout_s >= 0:  # NaN, too
            raise OptionError(f"body_timeout_s: want at least 0, got {self.body_timeout_s}")

    @property
    def seconds(self) -> float | None:
        """For `asyncio.timeout`."""
        return self.body_timeout_s or None
