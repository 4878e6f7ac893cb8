"""The clients of docs/lm_serving.md: their results are those of plain requests."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.serve.limits import Limits
from tests.serve.openai_clients import CLIENTS, FEATURES, MESSAGES, MOST, TEXTS
from tests.serve.test_openai import CHAT, Served
from tests.serve.test_openai_fields import serving
from tests.serve.test_openai_tools import QWEN
from tests.support.language_models import language_bundle, language_model

# Warnings of the clients about themselves, which are errors elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("llguidance", reason="the package llguidance is not installed")
    path = tmp_path_factory.mktemp("clients") / "tiny.litertlm"
    path.write_bytes(language_bundle(QWEN, model=language_model(capacity=1024)))
    with serving(path, Limits()) as server:
        yield server


def expected(served: Served) -> Any:
    """The answer to a plain request."""
    body = {"messages": MESSAGES, "max_tokens": MOST, "temperature": 0, "logprobs": True}
    return served.call(CHAT, body).json["choices"][0]


def check_chat(served: Served, found: str) -> None:
    assert found == expected(served)["message"]["content"]


def check_stream(served: Served, found: list[str]) -> None:
    assert "".join(found) == expected(served)["message"]["content"]
    assert len(list(filter(None, found))) > 1


def check_tools(_served: Served, found: tuple[str, Any, str]) -> None:
    name, arguments, answer = found
    assert name == "weather"
    check_structured(_served, arguments)
    assert isinstance(answer, str)
    assert answer


def check_streamed_calls(_served: Served, found: list[tuple[str, Any]]) -> None:
    ((name, arguments),) = found
    assert name == "weather"
    check_structured(_served, arguments)


def check_structured(_served: Served, found: Any) -> None:
    assert found["city"] in ("Rome", "Oslo")
    assert found["days"] in range(10)


def check_embeddings(served: Served, found: list[list[float]]) -> None:
    rows = served.call("/v1/embeddings", {"input": TEXTS}).json["data"]
    np.testing.assert_allclose(found, [row["embedding"] for row in rows], rtol=1e-5, atol=1e-6)


def check_scores(served: Served, found: list[float]) -> None:
    tokens = expected(served)["logprobs"]["content"]
    np.testing.assert_allclose(found, [token["logprob"] for token in tokens], rtol=1e-4)


SHOWN = Path(__file__).parents[2] / "docs" / "lm_serving.md"


def test_the_page_has_what_is_tested() -> None:
    """A row for each client, whose cells say which features the tests use."""
    section = SHOWN.read_text().partition("\n## Clients\n")[2].partition("\n## ")[0]
    table = re.findall(r"(?m)^\| (.*) \|$", section)
    (_, *features), *rows = ([cell.strip() for cell in row.split(" | ")] for row in table)
    assert len(features) == len(FEATURES)
    shown = {name: cells for name, *cells in rows if not name.startswith("--")}
    tested = {
        name: ["yes" if getattr(client, feature, None) else "no" for feature in FEATURES]
        for name, client in CLIENTS.items()
    }
    assert shown == tested


@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", CLIENTS)
def test_clients(name: str, feature: str, served: Served) -> None:
    method = getattr(CLIENTS[name], feature, None)
    if method is None:
        pytest.skip("the client has no such requests")
    client = CLIENTS[name](f"http://127.0.0.1:{served.port}/v1")
    globals()[f"check_{feature}"](served, method(client))
