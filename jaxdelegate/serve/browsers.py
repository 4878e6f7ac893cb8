"""Refuses requests of foreign web pages: a browser lets them send some to its own machine."""

import functools
import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

from jaxdelegate.serve.clients import RequestError, shown
from jaxdelegate.serve.limits import Limits

_FORM = "application/x-www-form-urlencoded"
_WITHOUT_ASKING = ("text/plain", "multipart/form-data", _FORM)  # may be sent to any server
_LOCAL = (".localhost", ".local", ".internal")  # no one can register names that end so


def check(request: Request, limits: Limits) -> None:
    """A RequestError of status 403 or 415 for what a foreign page may have sent."""
    origin = request.headers.get("Origin")
    if "*" in limits.allowed_origins:
        return
    _check_host(request, limits)
    if origin not in (None, *limits.allowed_origins):
        _check_origin(origin, request.headers.get("Host", ""))
    if origin not in limits.allowed_origins and request.method == "POST":
        _check_type(request)


def _check_host(request: Request, limits: Limits) -> None:
    """A page may have given this machine a name of its own site: then it is of the same origin."""
    address, *_ = request.scope.get("server") or [None]
    name = _name(request.headers.get("Host", ""))
    if _is_loopback(address) and not _is_local(name) and name not in limits.allowed_hosts:
        raise RequestError(
            f"Host: expected localhost or an address, got {shown(name)}; if that is a name of this "
            f"server, start it with --allowed_hosts={shown(name)[1:-1]}",
            403,
        )


def _check_origin(origin: str | None, host: str) -> None:
    try:
        origin_host = urlsplit(origin or "").netloc
    except ValueError:
        origin_host = ""
    if not host or str(origin_host).lower() != host.lower():
        raise RequestError(
            f"Origin: {shown(origin)} may not use this server; if its pages should, start the "
            f"server with --allowed_origins={shown(origin)[1:-1]}",
            403,
        )


def _check_type(request: Request) -> None:
    """Without a header, curl says that a body is a form; browsers add headers of their own."""
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    is_browser = "Origin" in request.headers or "Sec-Fetch-Site" in request.headers
    if kind in _WITHOUT_ASKING and (is_browser or kind != _FORM):
        expected = f"expected application/json, got {shown(kind)}: send this header with the body"
        raise RequestError(f"Content-Type: {expected}", 415)


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return host


def _is_local(name: str) -> bool:
    return "." not in name or name.endswith(_LOCAL) or _address(name) is not None


def _is_loopback(name: str | None) -> bool:
    address = _address(name or "")
    return address is not None and address.is_loopback


@functools.lru_cache(256)
def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
