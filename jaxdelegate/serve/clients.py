"""Who sends requests, and how a request is refused."""

import hashlib
import reprlib
from collections.abc import Mapping
from typing import NamedTuple

from jaxdelegate.errors import JaxDelegateError

_MAX_ADDRESS = 64  # characters

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
_REPR.maxlist = _REPR.maxtuple = 8
_REPR.maxlevel = 3
shown = _REPR.repr  # a client's value, shortened for messages


class Client(NamedTuple):
    """Who sends requests."""

    address: str = ""  # behind a trusted proxy, the one in its X-Forwarded-For
    # A digest of the API key; empty: none. An address may invent many if keys are not checked.
    key: str = ""

    @classmethod
    def of(cls, address: str, key: str | None) -> "Client":
        """`key`: in clear."""
        digest = hashlib.sha256(key.encode()).hexdigest() if key else ""
        return cls(address[:_MAX_ADDRESS], digest)

    @property
    def owner(self) -> "Client":
        """To whom sequences belong: to the key, from any address, or else to the address."""
        return Client("", self.key) if self.key else self


NO_CLIENT = Client()


class RequestError(JaxDelegateError, ValueError):
    """A request is refused or has failed; the message says why, where and what was expected.

    Attributes:
        status: the HTTP status: 400 for an invalid request, 404 for an unknown name, 413 for too
            large a body, 503 if the server is busy or shutting down, 504 for a timeout.
        headers: the response's.
    """

    def __init__(
        self, message: str, status: int = 400, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}
