"""The limits of a server for requests and memory."""

import dataclasses
import re

from jaxdelegate.errors import OptionError
from jaxdelegate.serve.settings import check_numbers, setting

MEBIBYTE = 1 << 20
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s,]+")  # as browsers write it
_HOST = re.compile(r"[a-z0-9_.-]+")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of requests; an OptionError for a value that is too small, or no origin or name."""

    max_request_bytes: int = setting(
        64 * MEBIBYTE,
        "The largest request body, also when decompressed. Larger ones: status 413.",
        1,
    )
    body_timeout_s: float = setting(
        60.0, "Seconds to receive an HTTP body; 0: no limit.", 0, flag="request_timeout_s"
    )
    # Three times as much for results. A single body or response may exceed it.
    max_held_bytes: int = setting(
        32 * MEBIBYTE,
        "Bytes of all request bodies, and of all responses, held at a time. Others wait.",
        1,
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "Web pages that may use the server: https://name,https://name:port. *: all."
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Names of this server besides localhost: name,name. A proxy on the same machine may pass "
        "on the name that its clients use.",
    )
    # Requests for the server's health, metrics and version need none.
    api_keys: tuple[str, ...] = setting(
        (),
        "Keys of clients: key,key. HTTP requests need one: Authorization: Bearer KEY. Unset: the "
        "environment variable JAXDELEGATE_API_KEY, or none.",
        flag="api_key",
    )
    allowed_media_domains: tuple[str, ...] = setting(
        (),
        "Hosts of which images in requests are loaded by URL: name,name. *: all on the internet. "
        "Unset: none; images come in the requests.",
    )
    # If they are not refused, the response's header `Warning` names the field.
    strict_fields: bool = setting(
        False, "Whether requests to language models with an unknown field are refused."
    )

    def __post_init__(self) -> None:
        check_numbers(self)
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                expected = "expected https://name, https://name:port, null or *"
                raise OptionError(f"allowed_origins: {expected}, got {origin!r}")
        if not all(key.isascii() and key.isprintable() for key in self.api_keys):
            raise OptionError("api_keys: expected printable ASCII characters")
        media = [host for host in self.allowed_media_domains if host != "*"]
        for field, names in (
            ("allowed_hosts", self.allowed_hosts),
            ("allowed_media_domains", media),
        ):
            for name in names:
                if not _HOST.fullmatch(name):
                    expected = "expected a name in lower case, without a port"
                    raise OptionError(f"{field}: {expected}, got {name!r}")

    @property
    def seconds(self) -> float | None:
        """`body_timeout_s` for `asyncio.timeout`; None: no limit."""
        return self.body_timeout_s or None
