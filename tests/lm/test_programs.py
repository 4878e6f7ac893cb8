"""The programs of a language model: caches are updated in place, and nothing is compiled twice."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import CacheWarning, DeviceMemoryError, InterpreterError
from jaxdelegate.lm import device_model
from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.language_model import LanguageModel
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.program_spec import ProgramSpecs
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.pjrt import client
from tests.support.language_models import drafter_bundle, language_bundle, language_model


@pytest.mark.parametrize("slots", [1, 3])
def test_caches_are_updated_in_place(slots: int) -> None:
    """A step copies none of them, however long they are."""
    content = language_model(hidden=64, capacity=256)
    model = LanguageModel(content, "model", {}, {"platform": "cpu"}, None, ":nocache")
    runner = ModelRunner(model, slots, frozenset())
    for slot in range(slots):
        runner.prefill(slot, [4, 5])
        runner.begin(slot, Request((), 8, SamplingParams()))
    runner.decode(2)
    before = runner.cache.arrays
    assert len(runner.decode(2)[0].tokens) == 2
    assert all(array.is_deleted() for array in before)  # donated
    program, _ = model.program(runner.specs.decode(runner.variant(0), 256))
    text = program.executable.as_text()
    assert "3.40282347e+38" not in text  # no sum is limited to finite numbers
    ahead = "" if slots == 1 else f"{slots},"
    shapes = [f"{ahead}1,1,256,64", f"{ahead}1,1,64,256"]
    for shape in shapes:
        assert f"f32[{shape}]" in text
        assert not re.search(rf"= f32\[{shape}\][^=]* copy\(", text)
    aliased = re.search(r"input_output_alias=\{([^\n]*?)\}, entry", text)
    assert aliased is not None
    assert aliased[1].count("alias)") == 2


def test_what_is_compiled_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    @contextlib.contextmanager
    def waiting(text: str) -> Iterator[None]:
        texts.append(text)
        yield

    monkeypatch.setattr(device_model, "waiting", waiting)
    model = LanguageModel(language_model(), "model", {}, {"platform": "cpu"}, None, ":nocache")
    for sampler in (lm.SamplerConfig(), lm.SamplerConfig(top_k=4)):
        variant = SamplingParams(sampler).variant(model.graph.vocabulary)
        model.program(ProgramSpecs(model.graph, 2, (2,)).decode(variant, 64))
    assert texts == [
        f"compiling model (decode decode, slots: 2, caches: 64, {chosen}) for cpu:0"
        for chosen in ("the largest logit", "top 4")
    ]


LONG = """
import sys
from jaxdelegate import lm
from jaxdelegate.lm.language_model import LanguageModel

LanguageModel._is_computable = lambda *_: False
with lm.Engine(sys.argv[1], lm.Backend.CPU(), cache_dir=sys.argv[2]) as engine:
    assert engine.graph.cache_lengths[0] < 1024
    print(engine.generate(["abc"], max_output_tokens=3)[0].completion_tokens)
"""


def test_models_that_compute_with_long_caches_only(tmp_path: Path) -> None:
    """A process without jax tries to load programs of shorter ones first."""
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(capacity=1024)))
    command = [sys.executable, "-c", LONG, str(path), str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() in {"1", "2", "3"}, done.stderr[-2000:]


def test_caches_that_do_not_fit() -> None:
    model = LanguageModel(language_model(), "model", {}, {"platform": "cpu"}, None, ":nocache")
    with pytest.raises(DeviceMemoryError, match=r"for 1000000000000 sequences .* smaller max_b"):
        ModelRunner(model, 10**12, frozenset())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(hidden=64)))
    return path


def test_nothing_is_compiled_twice(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = lm.Engine(path, lm.Backend.CPU(), max_batch=2, cache_dir=":nocache")
    engine.generate(["a long prompt", "b", "c"], max_output_tokens=40)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        engine.generate(["another long prompt", "b", "c", "d"], max_output_tokens=50)
        again = lm.Engine(path, lm.Backend.CPU(), max_batch=2, cache_dir=":nocache")
        again.generate(["a prompt", "b"], max_output_tokens=4)
    assert again.weight_bytes == engine.weight_bytes > 0
    assert not [r.message for r in caplog.records if "Compiling" in r.message]


def grown(
    path: Path, slots: int, count: int, capacity: int = 1024, **kind: bool
) -> tuple[list[lm.Completion], set[int]]:
    """Answers of a model for 1,024 tokens, and the lengths of caches that its programs take."""
    content = language_model(capacity=capacity, prefill=(64,), **kind)
    path.write_bytes(language_bundle(model=content))
    with lm.Engine(path, lm.Backend.CPU(), max_batch=slots, cache_dir=":nocache") as engine:
        prompts = ["a prompt" * 25, "b" * 30, "c" * 480][:count]
        made = engine.generate(prompts, max_output_tokens=80, log_probabilities=True)
        return made, {spec.length for spec in engine._model._programs._entries}


@pytest.mark.parametrize(("slots", "count", "expected"), [(1, 1, {256, 512}), (2, 3, {256, 1024})])
def test_caches_grow_with_the_sequences(
    slots: int, count: int, expected: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens and their scores are those of the longest caches, in every bit."""
    path = tmp_path / "model.litertlm"
    monkeypatch.setattr(LanguageGraph, "cache_lengths", (*sorted({*expected, 1024}),))
    short, lengths = grown(path, slots, count)
    assert lengths == expected
    monkeypatch.setattr(LanguageGraph, "cache_lengths", (1024,))
    assert grown(path, slots, count) == (short, {1024})


def test_the_length_of_caches_follows_from_places(tmp_path: Path) -> None:
    """Not from how many steps a run has, and not from what was in the caches before."""
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(capacity=1024, prefill=(64,))))
    with lm.Engine(path, lm.Backend.CPU()) as engine:
        runner, found = engine.new_runner(1, has_stops=False), []
        for steps in (32, 7, 1):
            runner.prefill(0, [5] * 240)
            runner.begin(0, Request((), 40, SamplingParams()))
            lengths = dict[int, int]()
            while not runner.is_resting(0):
                before = len(runner.ids(0))
                runner.decode(steps)
                length = runner.cache.length
                lengths |= dict.fromkeys(range(before, len(runner.ids(0))), length)
            found.append(lengths)
    assert found[0] == {n: 256 if n <= 256 else 512 for n in range(240, 280)}
    assert found[1:] == found[:1] * 2


def test_some_models_need_the_longest_caches(tmp_path: Path) -> None:
    assert grown(tmp_path / "model.litertlm", 1, 1, is_rigid=True)[1] == {1024}


def test_a_magic_number_stands_for_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LiteRT-LM writes another one into the model where it is a prime."""
    path = tmp_path / "model.litertlm"
    short, lengths = grown(path, 1, 1, 1021, is_rigid=True)
    assert lengths == {256, 512}
    monkeypatch.setattr(LanguageGraph, "cache_lengths", (1021,))
    long, lengths = grown(path, 1, 1, 1021, is_rigid=True)
    assert ([c.token_ids for c in long], lengths) == ([c.token_ids for c in short], {1021})


# A process whose drafter proposes tokens.
DRAFTING = """
import sys
from jaxdelegate import lm

engine = lm.Engine(sys.argv[1], cache_dir=sys.argv[2], enable_speculative_decoding=True)
print(engine.generate(["a prompt of some length", "b"], max_output_tokens=40)[0].token_ids)
print("jax" in sys.modules)
"""

# A process that generates: greedily, then by a program that no earlier process had.
PROCESS = """
import logging
import sys
from jaxdelegate import lm

class Loads(logging.Handler):
    count = 0
    def emit(self, record):
        self.count += "was loaded" in record.getMessage()

loads = Loads()
logging.getLogger("jaxdelegate").addHandler(loads)
logging.getLogger("jaxdelegate").setLevel(logging.DEBUG)
logging.getLogger("jaxdelegate").propagate = False

engine = lm.Engine(sys.argv[1], cache_dir=sys.argv[2])
print(engine.generate(["a prompt of some length", "b"], max_output_tokens=40)[0].token_ids)
print("jax" in sys.modules, engine.weight_bytes > 0)
session = engine.create_session(max_output_tokens=20)
before = loads.count
session.run_prefill(["a prompt of some length"])
both = loads.count - before
first = session.run_decode().texts
print(both, loads.count - before)
more = lm.RepetitionPenaltyConfig(repetition_penalty=1.5)
print(len(engine.generate(["b"], repetition_penalty_config=more, max_output_tokens=8)[0].text) > 0)
print("jax" in sys.modules)
session.run_prefill([" and more"])  # caches that were filled without jax
print(first, session.run_decode().texts, session.run_text_scoring(["x"]).scores)
"""


def started(path: Path, cache: str, script: str = PROCESS) -> list[str]:
    """What a process prints."""
    command = [sys.executable, "-c", script, str(path), cache]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.splitlines()


@pytest.mark.slow
def test_the_next_process_loads_programs_and_needs_no_jax(path: Path, tmp_path: Path) -> None:
    """Where one is missing, jax is imported, and the session goes on with its caches."""
    cache = tmp_path / "cache"
    first = started(path, str(cache))
    assert first[1] == "True True"
    written = sorted(cache.glob("*.program"))
    assert written
    # What generates is loaded before what reads.
    assert first[2] == "0 0"
    second = started(path, str(cache))
    assert second == [first[0], "False True", "2 2", first[3], "False", first[5]]
    assert sorted(cache.glob("*.program")) == written
    # The process asks for them last but one; the last one scores.
    *_, with_penalties, _ = sorted(written, key=lambda file: file.stat().st_mtime_ns)
    with_penalties.unlink()
    assert started(path, str(cache)) == [*second[:4], "True", first[5]]


@pytest.mark.slow
def test_a_drafter_needs_no_jax_either(path: Path, tmp_path: Path) -> None:
    path.write_bytes(drafter_bundle())
    tokens, *had_jax = started(path, str(tmp_path / "cache"), DRAFTING)
    assert had_jax == ["True"]
    assert started(path, str(tmp_path / "cache"), DRAFTING) == [tokens, "False"]


def test_a_damaged_program_is_compiled_again(path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def tokens() -> list[int]:
        with lm.Engine(path, lm.Backend.CPU(), cache_dir=str(cache)) as engine:
            return engine.generate(["a prompt"], max_output_tokens=4)[0].token_ids

    found = tokens()
    for file in cache.glob("*.program"):
        content = bytearray(file.read_bytes())
        content[-9] ^= 1
        file.write_bytes(content)
    with pytest.warns(CacheWarning, match="is not used: the digest of its code is wrong"):
        assert tokens() == found
    assert tokens() == found


def test_a_forked_process_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA would wait for threads that it does not have."""
    with lm.Engine(path, lm.Backend.CPU()) as engine:
        engine.generate(["a prompt"], max_output_tokens=2)
        monkeypatch.setattr(client, "_is_forked", True)
        with pytest.raises(InterpreterError, match="it was forked from one that had used XLA"):
            engine.generate(["a prompt"], max_output_tokens=2)


def test_where_programs_are_stored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    for folder, expected in ((":nocache", 0), (None, 2), ("", 2)):
        with lm.Engine(path, lm.Backend.CPU(), cache_dir=folder) as engine:
            engine.generate(["a prompt"], max_output_tokens=4)
        assert len([*tmp_path.glob("user/jaxdelegate/*.program")]) == expected
        assert not [*path.parent.glob("*cache*")]
