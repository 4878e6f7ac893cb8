"""The limits of a server for requests and memory."""

import dataclasses

from jaxdelegate.errors import OptionError

MEBIBYTE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Attributes:
        max_request_bytes: of a body, as sent and decompressed; HTTP and gRPC.
        body_timeout_s: seconds to receive an HTTP body; 0: no limit.
        max_held_bytes: of all HTTP request bodies in memory at a time, and of all responses; three
            times as much for all results. Requests beyond it wait. A single one may exceed it.

    Raises:
        OptionError: a value is too small.
    """

    max_request_bytes: int = 64 * MEBIBYTE
    body_timeout_s: float = 60.0
    max_held_bytes: int = 32 * MEBIBYTE

    def __post_init__(self) -> None:
        if self.max_request_bytes < 1:
            raise OptionError(f"max_request_bytes: must be >= 1, got {self.max_request_bytes}")
        if self.max_held_bytes < 1:
            raise OptionError(f"max_held_bytes: must be >= 1, got {self.max_held_bytes}")
        if not self.body_timeout_s >= 0:  # refuses NaN, too
            raise OptionError(f"body_timeout_s: must be >= 0, got {self.body_timeout_s}")

    @property
    def seconds(self) -> float | None:
        """`body_timeout_s` for `asyncio.timeout`; None: no limit."""
        return self.body_timeout_s or None
