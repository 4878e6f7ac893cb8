"""The limits of a server for requests and memory."""

import dataclasses
import re

from jaxdelegate.errors import OptionError

MEBIBYTE = 1 << 20
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s,]+")  # as browsers write it
_HOST = re.compile(r"[a-z0-9_.-]+")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Attributes:
        max_request_bytes: how large a body may be, as sent and decompressed; HTTP and gRPC.
        body_timeout_s: seconds to receive an HTTP body; 0: no limit.
        max_held_bytes: how much all HTTP request bodies in memory may take at a time, and how much
            all responses; three times as much for all results. Requests beyond it wait. A single
            one may exceed it.
        allowed_origins: the origins of web pages whose requests are accepted, besides pages of this
            server, for example `https://chat.example.com`; `*`: all.
        allowed_hosts: names of this server besides localhost, for clients on the same machine and
            proxies there that pass on the name which their clients use.
        api_keys: one of them must be in the header `Authorization: Bearer KEY` of HTTP requests,
            but those for the server's health, metrics and version; none: keys are not checked.
        allowed_media_domains: hosts of which images in requests are loaded by URL, for example
            `images.example.com`; `*`: all whose addresses are on the internet; none: no URLs.
        strict_fields: whether requests of OpenAI's API with an unknown field are refused. If not,
            the response's header `Warning` names it.

    Raises:
        OptionError: a value is too small, or not an origin or a name.
    """

    max_request_bytes: int = 64 * MEBIBYTE
    body_timeout_s: float = 60.0
    max_held_bytes: int = 32 * MEBIBYTE
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    allowed_media_domains: tuple[str, ...] = ()
    strict_fields: bool = False

    def __post_init__(self) -> None:
        for name, least in (("max_request_bytes", 1), ("max_held_bytes", 1), ("body_timeout_s", 0)):
            if not getattr(self, name) >= least:  # refuses NaN, too
                raise OptionError(f"{name}: must be >= {least}, got {getattr(self, name)}")
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
