"""Requests that a web page may have sent: origins, hosts and content types."""

import asyncio
from typing import Any

import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.serve.application import application
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.service import Service
from tests.serve.fakes import Response, call, echo, tensor

PAGE, JSON = "https://chat.example.com", {"Content-Type": "application/json"}


def asked(
    headers: dict[str, str],
    *,
    method: str = "POST",
    path: str = "/v2/repository/index",
    server: str = "127.0.0.1",
    **limits: Any,
) -> Response:
    app = application(Service([echo("m", tensor("x", "f4", -1))], Limits(**limits)))

    async def connected(scope: Any, *rest: Any) -> None:
        await app({**scope, "server": (server, 8000)}, *rest)

    given = {"Host": "localhost:8000", **headers}
    return asyncio.run(call(connected, method, path, b"{}", given.items()))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        JSON,
        {"Content-Type": "application/json; charset=utf-8"},
        {"Content-Type": "application/octet-stream"},  # tritonclient's
        {"Content-Type": "application/x-www-form-urlencoded"},  # curl's
        {"Host": "127.0.0.1:8000"},
        {"Host": "[::1]:8000"},
        {"Host": "LOCALHOST"},
        {"Host": "models"},
        {"Host": "host.docker.internal:8000"},
        {**JSON, "Origin": "http://localhost:8000"},  # a page of this server
        {**JSON, "Origin": "https://localhost:8000"},  # behind a proxy that provides TLS
    ],
)
def test_clients_that_are_no_foreign_pages(headers: dict[str, str]) -> None:
    assert asked(headers).status == 200


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({**JSON, "Origin": PAGE}, 403, f"--allowed_origins={PAGE}"),
        ({"Origin": PAGE, "Content-Type": "text/plain"}, 403, "Origin: 'https://chat"),
        ({**JSON, "Origin": "null"}, 403, "--allowed_origins=null"),
        ({**JSON, "Origin": ""}, 403, "Origin: ''"),
        ({**JSON, "Origin": "http://localhost:3000"}, 403, "Origin: 'http://localhost:3000'"),
        ({**JSON, "Origin": "http://localhost:8000.evil.com"}, 403, "Origin"),
        ({**JSON, "Origin": "http://["}, 403, "Origin"),
        ({**JSON, "Host": "evil.com:8000"}, 403, "--allowed_hosts=evil.com"),
        ({**JSON, "Host": "EVIL.com.:8000", "Origin": "http://EVIL.com.:8000"}, 403, "Host: exp"),
        ({**JSON, "Host": "127.0.0.1.evil.com"}, 403, "Host"),
        ({**JSON, "Host": "["}, 200, ""),  # no browser sends it
        ({"Content-Type": "text/plain"}, 415, "expected application/json, got 'text/plain'"),
        ({"Content-Type": "TEXT/plain;charset=UTF-8"}, 415, "Content-Type"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415, "Content-Type"),
        (
            {
                "Content-Type": "application/x-www-form-urlencoded",
                "Origin": "http://localhost:8000",
            },
            415,
            "Content-Type",
        ),
        (
            {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "cross-site"},
            415,
            "Content-Type",
        ),
    ],
)
def test_foreign_pages_are_refused(headers: dict[str, str], status: int, said: str) -> None:
    answer = asked(headers)
    assert (answer.status, said in answer.body.decode()) == (status, True)


def test_pages_that_a_flag_allows() -> None:
    for limits in ({"allowed_origins": (PAGE,)}, {"allowed_origins": ("*",)}):
        for kind in ("application/json", "text/plain"):
            answer = asked({"Origin": PAGE, "Content-Type": kind}, **limits)
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
        before = {
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type",
        }
        assert asked(before, method="OPTIONS", **limits).status == 200
    assert asked({"Origin": "https://evil.com"}, allowed_origins=(PAGE,)).status == 403
    assert asked({"Content-Type": "text/plain"}, allowed_origins=(PAGE,)).status == 415
    assert asked(JSON, method="OPTIONS").status == 405


def test_hosts_that_a_flag_allows() -> None:
    headers = {**JSON, "Host": "models.example.com"}
    assert asked(headers, allowed_hosts=("models.example.com",)).status == 200
    assert asked({**JSON, "Host": "other.com"}, allowed_hosts=("example.com",)).status == 403
    # Other machines may have any name for this one.
    assert asked(headers, server="192.168.0.7").status == 200


def test_reading_is_refused_too() -> None:
    for path in ("/v2/models/m", "/v2/models/stats", "/v2"):
        assert asked({}, method="GET", path=path).status == 200
        assert asked({"Origin": PAGE}, method="GET", path=path).status == 403
        assert asked({"Host": "evil.com"}, method="GET", path=path).status == 403


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"allowed_origins": ("chat.example.com",)}, "allowed_origins: expected https://name"),
        ({"allowed_origins": ("https://chat.example.com/",)}, "got 'https://chat.example.com/'"),
        ({"allowed_hosts": ("https://example.com",)}, "allowed_hosts: expected a name"),
        ({"allowed_hosts": ("example.com:80",)}, "without a port"),
    ],
)
def test_wrong_names(limits: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Limits(**limits)
