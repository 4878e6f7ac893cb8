"""Images by URL: from allowed hosts only, no address of the inside, limits of bytes and time."""

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.openai import files, image_urls
from jaxdelegate.serve.openai.fields import ApiError
from jaxdelegate.serve.openai.image_urls import loaded
from tests.support.vision_models import file_of, picture

OUTSIDE, HOSTS = "93.184.216.34", ("good.example", "other.example", "inside.example")
IMAGE = file_of(picture(9, 7))


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path."""

    seen: list[tuple[str, str]]  # hosts and paths

    def do_GET(self) -> None:
        self.seen.append((self.headers["Host"], self.path))
        kind, _, rest = self.path[1:].partition("?")[0].partition("/")
        if kind == "to":
            self.send_response(302)
            self.send_header("Location", rest)
            self.end_headers()
        elif kind == "slow":
            with contextlib.suppress(OSError):
                for _ in range(100):
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n" if rest == "head" else b"x")
                    time.sleep(0.05)
        else:
            self.send_response(200 if kind == "a.png" else 404)
            self.send_header("Content-Type", "text/html")  # not looked at
            self.end_headers()
            self.wfile.write(IMAGE)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def connected(port: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of connections, all of which go to the local server."""
    found, _Handler.seen = list[str](), []

    def resolved(host: str, _: int) -> list[Any]:
        addresses = {"inside.example": [OUTSIDE, "10.0.0.1"], "none.example": []}
        return [(0, 0, 0, "", (each, 0)) for each in addresses.get(host, [OUTSIDE])]

    def connect(address: str, _: int, seconds: float) -> socket.socket:
        found.append(address)
        return socket.create_connection(("127.0.0.1", port), timeout=seconds)

    monkeypatch.setattr(image_urls, "_resolved", resolved)
    monkeypatch.setattr(image_urls, "_connected", connect)
    return found


def test_a_file_of_an_allowed_host(connected: list[str]) -> None:
    assert loaded("http://good.example/a.png?size=1#part", HOSTS, 1 << 20) == IMAGE
    assert loaded("http://any.example:8080/a.png", ["*"], len(IMAGE)) == IMAGE
    assert connected == [OUTSIDE, OUTSIDE]
    names = [("good.example", "/a.png?size=1"), ("any.example:8080", "/a.png")]
    assert _Handler.seen == names


def test_redirects_are_checked() -> None:
    assert loaded("http://good.example/to/http://other.example/a.png", HOSTS, 1 << 20) == IMAGE
    assert loaded("http://good.example/to//a.png", HOSTS, 1 << 20) == IMAGE
    for target, problem in (
        ("http://inside.example/a.png", "address inside of a network"),
        ("http://evil.example/a.png", "does not load from that host"),
        ("file:///etc/passwd", "expected http://host/path"),
    ):
        _Handler.seen.clear()
        with pytest.raises(GenerationError, match=problem):
            loaded(f"http://good.example/to/{target}", HOSTS, 1 << 20)
        assert len(_Handler.seen) == 1
    chain = "http://good.example" + "/to/http://good.example" * 4 + "/a.png"
    with pytest.raises(GenerationError, match="expected at most 3 redirects"):
        loaded(chain, HOSTS, 1 << 20)


REFUSED = {
    "http://evil.example/a.png": "does not load from that host",
    "http://good.example.evil.example/a.png": "does not load from that host",
    "http://good.example@evil.example/a.png": "expected http://host/path",
    "http://inside.example/a.png": "address inside of a network, or of this machine",
    "http://good.example/other": "the server answered with status 404",
    "http://good.example:port/a.png": "[Pp]ort",
    "http://:80/a.png": "expected http://host/path",
    "https://good.example/a.png": "it was not loaded: ",  # the server has no TLS
    "http://good.example/a.png\r\nX: y": "404|was not loaded",
}


@pytest.mark.parametrize("url", REFUSED)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(GenerationError, match=f"the image at .*: .*{REFUSED[url]}"):
        loaded(url, HOSTS, 1 << 20)


def test_a_host_without_an_address() -> None:
    with pytest.raises(GenerationError, match="address inside"):
        loaded("http://none.example/a.png", ["*"], 1 << 20)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1%eth0", "fd00::1"),
        *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1"),
    ],
)
def test_addresses_inside(address: str) -> None:
    assert not image_urls._is_outside(address)


@pytest.mark.parametrize("address", [OUTSIDE, "8.8.8.8", "2606:4700::1111"])
def test_addresses_outside(address: str) -> None:
    assert image_urls._is_outside(address)


def test_the_real_resolver_finds_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for host in ("localhost", "127.0.0.1", "[::1]", "2130706433"):
        with pytest.raises(GenerationError, match=r"address"):
            loaded(f"http://{host}/a.png", ["*"], 1 << 20)


def test_a_file_that_is_too_large() -> None:
    with pytest.raises(GenerationError, match=r"expected at most 10 bytes, got more$"):
        loaded("http://good.example/a.png", HOSTS, 10)


@pytest.mark.parametrize("path", ["slow/head", "slow/body"])
def test_a_server_that_is_too_slow(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_urls, "SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(GenerationError, match=r"loading it takes longer than 0.3 s$"):
        loaded(f"http://good.example/{path}", HOSTS, 1 << 20)
    assert time.monotonic() - began < 3


def test_a_server_that_is_slow_to_shake_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(image_urls, "_connected", lambda *_: ours)
    monkeypatch.setattr(image_urls, "SECONDS", 0.3)
    with theirs, pytest.raises(GenerationError, match=r"loading it takes longer than 0.3 s$"):
        loaded("https://good.example/a.png", HOSTS, 1 << 20)


def test_a_name_server_that_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(image_urls, "_resolved", lambda *_: may_end.wait(60))
    monkeypatch.setattr(image_urls, "SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(GenerationError, match=r"loading it takes longer than 0.3 s$"):
        loaded("http://good.example/a.png", HOSTS, 1 << 20)
    assert time.monotonic() - began < 3
    may_end.set()


def part(url: str) -> dict[str, Any]:
    return files.image_part({"image_url": {"url": url}}, "messages[0].content[0]")


class _Model:
    """Reads files as they are."""

    name = "tiny"

    class engine:  # noqa: N801
        class images:  # noqa: N801
            read: Callable[..., Any] = staticmethod(lambda data, _: data)


def test_images_of_a_request() -> None:
    url = part("http://good.example/a.png")
    assert files.read_files(_Model, [url, url], None, HOSTS) == [IMAGE, IMAGE]
    with pytest.raises(ApiError, match=r"address inside") as error:
        files.read_files(_Model, [url, part("http://inside.example/a")], None, HOSTS)
    assert error.value.param == "messages[0].content[0].image_url.url"
    with pytest.raises(ApiError, match=r"the server loads no such files"):
        files.read_files(_Model, [url], None, ())
    assert files.has_urls(b'{"image_url": {"url": "http://good.example"}}')
    assert not files.has_urls(b'{"image_url": {"url": "data:"}}')


def test_the_setting() -> None:
    Limits(allowed_media_domains=("*", "good.example"))
    with pytest.raises(OptionError, match="allowed_media_domains: expected a name"):
        Limits(allowed_media_domains=("https://good.example",))
