"""Refuses requests without an API key, if the server has keys."""

import hmac

from starlette.requests import Request

from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.limits import Limits

_OPEN = ("/health", "/metrics", "/ping", "/v2/health/live", "/v2/health/ready", "/version")


def check(request: Request, limits: Limits) -> None:
    """A RequestError of status 401 for a missing or wrong key."""
    if not limits.api_keys or request.url.path in _OPEN:
        return
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    known = [hmac.compare_digest(key.strip().encode(), k.encode()) for k in limits.api_keys]
    if scheme.lower() != "bearer" or not any(known):
        raise RequestError(
            "Authorization: expected Bearer and one of the server's API keys (--api_key)",
            401,
            headers={"WWW-Authenticate": "Bearer"},
        )
