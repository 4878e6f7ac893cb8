"""LoRA adapters in the server: each is a model for clients, and they share slots."""

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.service import open_service, parse_models
from jaxdelegate.serve.settings import ServeSettings
from tests.serve.test_openai import TEXT, Served
from tests.serve.test_openai_fields import serving
from tests.support.language_models import (
    EXPORTED,
    adapter_factors,
    adapter_file,
    language_bundle,
    language_model,
    most_likely,
    until_stop,
)

RANK, COUNT = 4, 8
MODEL = language_model(lora_ranks=(RANK,))
FACTORS = {name: adapter_factors(EXPORTED, RANK, seed) for seed, name in enumerate(("one", "two"))}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters") / "tiny.litertlm"
    path.write_bytes(language_bundle(model=MODEL))
    for name, factors in FACTORS.items():
        (path.parent / f"{name}.tflite").write_bytes(adapter_file(factors, RANK))
    return path


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    lora = {name: str(path.parent / f"{name}.tflite") for name in FACTORS}
    with serving(path, Limits(), lora=lora) as server:
        yield server


def test_adapters_are_models(served: Served) -> None:
    models = {model["id"]: model for model in served.call("/v1/models").json["data"]}
    assert {name: model.get("parent") for name, model in models.items()} == {
        "tiny": None,
        "one": "tiny",
        "two": "tiny",
    }
    assert models["one"]["max_model_len"] == models["tiny"]["max_model_len"]
    assert served.call("/v1/models/two").json["status"] == "ready"


def test_the_model_of_a_request_chooses_the_adapter(served: Served) -> None:
    """Requests of all models come at once, and again: two slots change their adapters."""
    names = ["tiny", *FACTORS] * 2
    more: Any = {"key": f"decode_lora_r{RANK}"}
    ids = served.engine.prompt_ids("Hello")
    wanted = {
        name: until_stop(most_likely(MODEL, ids, COUNT, factors=factors, **more))
        for name, factors in FACTORS.items()
    }
    wanted["tiny"] = until_stop(most_likely(MODEL, ids, COUNT))
    assert len({*map(tuple, wanted.values())}) == 3
    body = {"prompt": "Hello", "max_tokens": COUNT, "temperature": 0}
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda n: served.call(TEXT, {**body, "model": n}).json, names))
    for name, answer in zip(names, answers, strict=True):
        assert answer["model"] == name
        assert answer["choices"][0]["text"] == served.engine.detokenize(wanted[name])


def test_settings_that_do_not_fit(path: Path) -> None:
    with pytest.raises(OptionError, match="lora: expected name=path,name=path, got 'one'"):
        parse_models("one", "lora")
    settings = ServeSettings(lora={"one": str(path.parent / "one.tflite")})
    with pytest.raises(OptionError, match="expected one language model for adapters, got 2"):
        open_service({"a": path, "b": path}, settings)
    with pytest.raises(OptionError, match="duplicate model name 'one'"):
        open_service({"one": path}, settings)
