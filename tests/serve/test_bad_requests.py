"""Requests that cannot be answered: each gets a 4xx that names what is wrong; the next is fine."""

import asyncio
import json
from typing import Any

import pytest

from jaxdelegate.serve.application import application
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.service import Service
from tests.serve.bad_requests import BAD, INFER, LIMIT, TABLES, TENSORS, Bad, good
from tests.serve.fakes import Answer, call, echo, tensor


def served() -> Any:
    tensors = [
        tensor(name, dtype, *([-1, 3] if name == "x" else [-1]))
        for name, (dtype, *_) in TENSORS.items()
    ]
    return application(Service([echo("m", *tensors)], Limits(LIMIT)))


async def answers(app: Any, bad: Bad) -> tuple[Answer, Answer]:
    """To the bad request, and to a good one after it."""
    first = await call(app, bad.method, bad.path, bad.body, bad.headers.items())
    return first, await call(app, "POST", INFER, json.dumps(good()).encode())


@pytest.mark.parametrize("table", TABLES)
def test_bad_requests_are_answered_with_what_is_wrong(table: Any) -> None:
    app = served()
    wrong = []
    for bad in table():
        answer, after = asyncio.run(answers(app, bad))
        message = answer.json.get("error", "")
        is_right = answer.status == bad.status and bad.words in message and len(message) < 600
        if not is_right or "Traceback" in message or after.status != 200:
            wrong.append((bad.name, bad.status, bad.words, answer, after.status))
    assert wrong == []


def test_there_are_two_hundred_of_different_names() -> None:
    assert len(BAD) >= 200
    names = [bad.name for bad in BAD]
    assert [n for n in names if names.count(n) > 1] == []
