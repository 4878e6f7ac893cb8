"""Bad requests: each gets a 4xx that names the problem, and the next request succeeds."""

import asyncio
import json
from typing import Any

import pytest

from jaxdelegate.serve.application import application
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.service import Service
from tests.serve.bad_requests import BAD, INFER, LIMIT, TABLES, TENSORS, Bad, good
from tests.serve.fakes import Response, call, echo, tensor


def served() -> Any:
    tensors = [
        tensor(name, dtype, *([-1, 3] if name == "x" else [-1]))
        for name, (dtype, *_) in TENSORS.items()
    ]
    return application(Service([echo("m", *tensors)], Limits(LIMIT)))


async def responses(app: Any, bad: Bad) -> tuple[Response, Response]:
    """The responses to a bad request, and to a good one after it."""
    first = await call(app, bad.method, bad.path, bad.body, bad.headers.items())
    return first, await call(app, "POST", INFER, json.dumps(good()).encode())


@pytest.mark.parametrize("table", TABLES)
def test_refusals_of_bad_requests_name_the_problem(table: Any) -> None:
    app = served()
    wrong = []
    for bad in table():
        refusal, after = asyncio.run(responses(app, bad))
        message = refusal.json.get("error", "")
        is_right = refusal.status == bad.status and bad.words in message and len(message) < 600
        if not is_right or "Traceback" in message or after.status != 200:
            wrong.append((bad.name, bad.status, bad.words, refusal, after.status))
    assert wrong == []


def test_there_are_two_hundred_with_unique_names() -> None:
    assert len(BAD) >= 200
    names = [bad.name for bad in BAD]
    assert [n for n in names if names.count(n) > 1] == []
