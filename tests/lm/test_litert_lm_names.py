"""The page with the names of `litert_lm`, and that they are here."""

import importlib.util
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxdelegate import lm

DOCS = Path(__file__).parents[2] / "docs"
IS_ABSENT = importlib.util.find_spec("litert_lm") is None
ROW = re.compile(r"\| `([\w.]+)(?:\((.*)\)|: (.*))?` \| (.*) \|")


def generator() -> ModuleType:
    path = DOCS / "generate_litert_lm.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows() -> dict[str, tuple[str, ...]]:
    """Parameters, members and what is here, by name."""
    text = (DOCS / "api" / "lm.md").read_text().partition("<!-- table")[2]
    return {match[1]: match.groups()[1:] for match in ROW.finditer(text)}


@pytest.mark.skipif(IS_ABSENT, reason="litert_lm is not installed")
def test_the_table_is_that_of_the_installed_package() -> None:
    text = (DOCS / "api" / "lm.md").read_text()
    assert generator().page(text) == text, "run `python docs/generate_litert_lm.py`"


@pytest.mark.parametrize(("name", "row"), rows().items())
def test_a_name_is_here_as_the_table_says(name: str, row: tuple[str, ...]) -> None:
    parameters, members, here = row
    found: Any = lm
    for part in name.split("."):
        found = getattr(found, part, None)
    assert (found is None) == here.startswith("no: "), name
    if found is not None and members is not None:
        assert [m.name for m in found] == members.split(", ")
    if here == "yes" and parameters and not name.endswith("NPU"):
        named = [p for p in parameters.split(", ") if p.isidentifier()]
        assert set(named) <= inspect.signature(found).parameters.keys()


class FakeConversation(lm.AbstractConversation):
    """Echoes messages."""

    token_count = 0

    def send_message(self, message: Any, **_: Any) -> lm.Message:
        return lm.Message.model(lm.Contents.of(message))

    def send_message_async(self, message: Any, **_: Any) -> Any:
        yield self.send_message(message)

    def render_message_to_string(self, message: Any) -> str:
        return str(message)

    def get_benchmark_info(self) -> lm.BenchmarkInfo:
        return lm.BenchmarkInfo(0, 0, 0, 0, 0, 0)


class FakeEngine(lm.AbstractEngine):
    """Has conversations that echo."""

    bos_token_id, eos_token_ids = None, []

    def create_conversation(
        self, *, messages: Sequence[Mapping[str, Any]] | None = None, **_: Any
    ) -> FakeConversation:
        return FakeConversation(messages=messages, max_output_tokens=3)

    def create_session(self, **_: Any) -> Any:
        return None

    def tokenize(self, text: str) -> list[int]:
        return [*text.encode()]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode()


def test_abstract_classes_are_bases_of_others_engines() -> None:
    engine = FakeEngine(model_path="a", backend=lm.Backend.CPU(), max_num_tokens=5)
    assert (engine.max_num_tokens, engine.cache_dir, engine.vision_backend) == (5, None, None)
    said = [lm.Message.user("a")]
    with engine, engine.create_conversation(messages=said) as talk:
        assert str(talk.send_message("b")) == "b"
        assert (talk.messages, talk.max_output_tokens, talk.tools) == (said, 3, [])
        assert talk.get_debug_artifacts() is None  # type: ignore[func-returns-value]
        talk.cancel_process()
    for kind in (lm.AbstractEngine, lm.AbstractConversation, lm.AbstractSession):
        with pytest.raises(TypeError, match="abstract"):
            kind()  # type: ignore[abstract, call-arg]


def test_the_classes_of_the_engine_inherit_the_abstract_ones() -> None:
    for name in ("Engine", "Conversation", "Session", "Benchmark"):
        assert issubclass(getattr(lm, name), getattr(lm, f"Abstract{name}"))
