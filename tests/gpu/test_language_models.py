"""On a GPU: tokens and scores of language models, alone, in a batch, drawn, drafted, and served."""

import concurrent.futures
import contextlib
import http.client
import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.lm.largest import chunk_length, largest, top_k
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from tests.gpu.on_device import NEEDS_DEVICE, PLATFORM

for _package in ("litert_lm_builder", "minijinja", "tokenizers"):
    pytest.importorskip(_package, reason=f"the extra lm is not installed: no {_package}")
support = pytest.importorskip("tests.support.language_models")
families = pytest.importorskip("tests.support.decoder_families")

pytestmark = NEEDS_DEVICE
BOS, EOS = 1, 2
PROMPTS = ["Hello", "What is 2 + 3?", "x", "The quick brown fox jumps over the lazy dog", "äöü €"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(support.language_bundle())
    return path


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[lm.Engine]:
    with lm.Engine(path, max_batch=3, options={"platform": PLATFORM}) as engine:
        yield engine


@pytest.fixture(scope="module")
def on_cpu(path: Path) -> Iterator[lm.Engine]:
    with lm.Engine(path, lm.Backend.CPU(), max_batch=3) as engine:
        yield engine


def test_tokens_are_those_of_the_numpy_kernels(engine: lm.Engine) -> None:
    """More prompts than slots: some join while others are generating."""
    model = support.language_model()
    for prompt, found in zip(PROMPTS, engine.generate(PROMPTS, max_output_tokens=20), strict=True):
        want = support.most_likely(model, [BOS, *engine.tokenize(prompt)], 20)
        assert found.token_ids == (want[: want.index(EOS)] if EOS in want else want)


def test_a_session_streams_the_batch_text(engine: lm.Engine) -> None:
    (whole,) = engine.generate(PROMPTS[:1], max_output_tokens=20)
    with engine.create_session(max_output_tokens=20) as session:
        session.run_prefill(PROMPTS[:1])
        assert "".join(r.texts[0] for r in session.run_decode_async()) == whole.text


def test_drawn_tokens_are_those_on_a_cpu(engine: lm.Engine, on_cpu: lm.Engine) -> None:
    sampler = lm.SamplerConfig(top_k=20, top_p=0.95, temperature=1.5, seed=7)
    found, want = (
        [c.token_ids for c in e.generate(PROMPTS, sampler_config=sampler, max_output_tokens=12)]
        for e in (engine, on_cpu)
    )
    assert found == want


def test_the_largest_logits_of_a_vocabulary() -> None:
    """By chunks, as the engine finds them on a GPU; the first ones of equal ones."""
    count, k = 151936, 64
    rng = np.random.default_rng(0)
    rows = np.stack([rng.normal(size=count), rng.integers(-3, 4, count)]).astype(np.float32)
    chunk = chunk_length(count, k, "gpu")
    with jax.default_device(jax.devices(PLATFORM)[0]):
        values, places = jax.jit(jax.vmap(lambda row: top_k(row, k, chunk)))(rows)
        first = jax.jit(jax.vmap(lambda row: largest(row, "gpu")))(rows)
    want = np.argsort(-rows, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(rows, want, 1))
    np.testing.assert_array_equal(first, rows.argmax(1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_scores(path: Path, on_cpu: lm.Engine, dtype: str) -> None:
    options = {"platform": PLATFORM, "compute_dtype": dtype}
    targets = ["yes", " a longer text of more than thirty-two tokens, in two parts"]
    scores = []
    with lm.Engine(path, options=options) as engine:
        for each in (engine, on_cpu):
            with each.create_session() as session:
                session.run_prefill(["Hello"])
                scores.append(session.run_text_scoring(targets).scores)
    tokens = [len(on_cpu.tokenize(text)) for text in targets]
    # Each token's logarithm has the rounding of its logits.
    most = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[dtype] * np.array(tokens)
    assert (np.abs(np.subtract(*scores)) <= most).all()


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", families.FAMILIES)
def test_attention_of_families(name: str, slots: int, tmp_path: Path) -> None:
    """In one kernel, also in caches that are longer than a block."""
    path = tmp_path / "model.litertlm"
    model = families.decoder(families.FAMILIES[name], capacity=320, prefill=(64,))
    path.write_bytes(support.language_bundle(model=model))
    prompts = [*PROMPTS[:2], PROMPTS[3] * 4]
    found = []
    for platform in (PLATFORM, "cpu"):
        with lm.Engine(path, max_batch=slots, options={"platform": platform}) as engine:
            more = {"max_output_tokens": 20, "log_probabilities": True}
            found.append(engine.generate(prompts, **more))
    for got, want in zip(*found, strict=True):
        assert got.token_ids == want.token_ids
        scores = [np.array(each.log_probabilities) for each in (got, want)]
        np.testing.assert_allclose(*scores, rtol=0, atol=1e-3)


def test_drafted_tokens_are_those_of_plain_decoding(tmp_path: Path) -> None:
    path = tmp_path / "drafter.litertlm"
    path.write_bytes(support.drafter_bundle())
    found = []
    for drafts in (False, True):
        options = {"platform": PLATFORM}
        with lm.Engine(path, options=options, enable_speculative_decoding=drafts) as engine:
            found.append([c.token_ids for c in engine.generate(PROMPTS, max_output_tokens=16)])
    assert found[0] == found[1]


@pytest.fixture
def port(path: Path) -> Iterator[int]:
    """A server's, with fewer slots than clients."""
    lines = queue.Queue[str]()
    settings = ServeSettings(max_batch_size=4, delegate_options={"platform": PLATFORM})
    server = Server({"tiny": path}, settings, Limits(), port=0, say=lines.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    found = int(lines.get(timeout=60).rpartition(":")[2])
    try:
        assert "is ready" in lines.get(timeout=600)
        yield found
    finally:
        server.stop()
        thread.join(60)


def test_clients_at_once_get_the_texts_of_an_engine_alone(port: int, engine: lm.Engine) -> None:
    """Prompts of many lengths join while others are generating, and leave at different steps."""
    prompts = [prompt * count for count in (1, 2) for prompt in PROMPTS]
    limits = [4 + 3 * (n % 7) for n in range(len(prompts))]

    def answer(prompt: str, limit: int) -> str:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": limit, "temperature": 0}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(body))
            response = connection.getresponse()
            assert response.status == 200
            text: str = json.loads(response.read())["choices"][0]["text"]
            return text

    want = [
        engine.generate([prompt], max_output_tokens=limit)[0].text
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    for _ in range(2):  # the second time with caches that have the prompts
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            assert [*pool.map(answer, prompts, limits)] == want
