"""Loads images by URL: of hosts that the server allows, and from no address of the inside."""

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit

from jaxdelegate.errors import GenerationError
from jaxdelegate.serve.clients import shown

ALL = "*"
SECONDS = 10  # for an image, redirects included
_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # has addresses of IPv4, which may be inside
T = TypeVar("T")
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "jaxdelegate"}


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def loaded(url: str, hosts: Collection[str], most: int) -> bytes:
    """The file at a URL, at most `most` bytes. Its type is not looked at, and proxies are not used.

    `hosts` are the names that it may have, also after a redirect; `*`: all. A GenerationError if
    the host is not allowed or is inside, or the file is absent, too large or slow.
    """
    deadline = time.monotonic() + SECONDS
    found, redirects = _answer(_checked(url, hosts), most, deadline), 0
    while isinstance(found, str):
        if (redirects := redirects + 1) > _MOST_REDIRECTS:
            _fail(url, f"expected at most {_MOST_REDIRECTS} redirects")
        url = urljoin(url, found)
        found = _answer(_checked(url, hosts), most, deadline)
    return found


def _checked(url: str, hosts: Collection[str]) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # a ValueError if it is not a number
    except ValueError as error:
        _fail(url, str(error))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        _fail(url, "expected http://host/path or https://host/path")
    if ALL not in hosts and parts.hostname not in hosts:
        _fail(url, "this server does not load from that host (allowed_media_domains)")
    return parts


def _answer(url: SplitResult, most: int, deadline: float) -> bytes | str:
    """The body, or where the server redirects to."""
    try:
        with _connection(url, deadline) as connection:
            target = url._replace(scheme="", netloc="", fragment="", path=url.path or "/")
            connection.request("GET", target.geturl(), headers=_HEADERS)
            response = connection.getresponse()
            if response.status in _REDIRECTS:
                return response.headers.get("Location") or ""
            if response.status != http.HTTPStatus.OK:
                _fail(url.geturl(), f"the server answered with status {response.status}")
            body = response.read(most + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, GenerationError):
            raise
        body, problem = b"", f"it was not loaded: {error or type(error).__name__}"
    else:
        problem = f"expected at most {most} bytes, got more" if len(body) > most else ""
    if time.monotonic() > deadline:
        problem = f"loading it takes longer than {SECONDS} s"
    if problem:
        _fail(url.geturl(), problem)
    return body


@contextlib.contextmanager
def _connection(url: SplitResult, deadline: float) -> Iterator[http.client.HTTPConnection]:
    """A connection to an address that was checked; at the deadline it ends."""
    host, is_secure = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if is_secure else 80)
    address = _address(url.geturl(), host, port, deadline - time.monotonic())
    sock = _connected(address, port, deadline - time.monotonic())
    if is_secure:
        sock = _secured(sock, host)
    watch = threading.Timer(max(deadline - time.monotonic(), 0), _end, [sock])
    watch.daemon = True
    watch.start()
    try:
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        connection = http.client.HTTPConnection(host, port)
        connection.sock = sock
        yield connection
    finally:
        watch.cancel()
        sock.close()


def _connected(address: str, port: int, seconds: float) -> socket.socket:
    return socket.create_connection((address, port), timeout=max(seconds, 0.1))


def _secured(sock: socket.socket, host: str) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    return context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)


def _end(sock: socket.socket) -> None:
    """End what a thread reads from a socket; without the state of TLS, which it may use now."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _address(url: str, host: str, port: int, seconds: float) -> str:
    """An address of a host, all of which are outside. A TimeoutError: its name takes longer."""
    try:
        found = [str(each[4][0]) for each in _within(max(seconds, 0), _resolved, host, port)]
    except TimeoutError:
        raise
    except (OSError, UnicodeError):
        _fail(url, "its host has no address")
    if not (found and all(map(_is_outside, found))):
        _fail(url, "its host has an address inside of a network, or of this machine")
    return found[0]


def _within(seconds: float, function: Callable[..., T], *arguments: Any) -> T:
    """What a function returns; later than that its thread goes on, since nothing can end it."""
    found = Future[T]()

    def run() -> None:
        try:
            found.set_result(function(*arguments))
        except (OSError, UnicodeError) as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result(seconds)


def _resolved(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _is_outside(text: str) -> bool:
    """Whether an address is one of the internet, and no other form of one of IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        others = address.ipv4_mapped, address.sixtofour, address.teredo
        if address in _NAT64 or any(other is not None for other in others):
            return False
    return address.is_global and not address.is_multicast


def _fail(url: str, problem: str) -> NoReturn:
    raise GenerationError(f"the image at {shown(url)}: {problem}")
