"""`jaxdelegate lm`, and other tools with models in bundles."""

import builtins
import io
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
import sentencepiece
import tokenizers
from litert_lm_builder.runtime.proto import llm_metadata_pb2

from jaxdelegate.bundles.bundle import open_bundle
from jaxdelegate.cache.maintenance import list_entries
from jaxdelegate.lm import Backend, Content, Contents, Engine
from jaxdelegate.text import printable
from jaxdelegate.tools.main import main
from tests.support.audio_models import audio_adapter, sound_bundle, tone
from tests.support.audio_models import file_of as sound_file_of
from tests.support.bundles import (
    TYPES,
    gestures,
    litertlm,
    llm_task,
    model_part,
    multiplier,
    parts,
    zipped,
)
from tests.support.language_models import language_bundle
from tests.support.vision_models import file_of, gemma3, picture, pixel_encoder, vision_bundle
from tests.tools.conftest import Refuse, Run

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    sections = [*parts(), model_part("tf_lite_audio_adapter"), model_part("tf_lite_mtp_drafter")]
    path = tmp_path / "gemma.litertlm"
    path.write_bytes(litertlm(sections, properties={"Authors": "tests\n"}))
    return os.fspath(path)


def test_describe(bundle: str, capsys: Capture) -> None:
    assert main(["lm", "describe", bundle]) == 0
    printed = capsys.readouterr().out
    for line in (
        f"{bundle}: LiteRT-LM 1.7.0 bundle,",
        r"  Authors:  tests\n",
        "  model type:            gemma3",
        "  tokens at most:        64",
        "  start token:           1",
        "  stop tokens:           '<eos>', 3 4",
        "  sampler:               TOP_P, k 5, p 0.5, temperature 0.25, seed None",
        "  padding token:         not declared",
        "  speculative decoding:  yes",
        "  {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "  Hugging Face, 17 tokens",
        "Model prefill_decode",
        "      kv_cache_k_0  FLOAT32 [4]",
        "      logits        FLOAT32 [4]",
        "  audio_adapter: audio input is not supported; the model alone runs as '!audio_adapter'",
    ):
        assert line in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_describe_archives(tmp_path: Path, capsys: Capture) -> None:
    vision = zipped({"vision.tflite": multiplier()})
    for name, content in (
        ("hands.task", gestures()),
        ("lm.task", llm_task()),
        ("vision.zip", vision),
    ):
        (tmp_path / name).write_bytes(content)
        assert main(["lm", "describe", f"--graph={tmp_path / name}"]) == 0
    printed = capsys.readouterr().out
    assert "Model hands.task!hand_detector.tflite" in printed
    assert "  SentencePiece, " in printed
    assert "Properties" not in printed
    assert "Not used for text generation" not in printed


TEXTS = ("the cat sat", "a dog, hello", "  the  end ", "", "<eos> the", "x\u00e9\n")


def test_describe_saves_the_tokenizer_of_hugging_face(
    bundle: str, tmp_path: Path, capsys: Capture
) -> None:
    own = open_bundle(bundle).tokenizer()
    folder, file = tmp_path / "new" / "", tmp_path / "own.json"
    for path in (f"{folder}/", os.fspath(file), os.fspath(folder)):
        assert main(["lm", "describe", bundle, f"--save_tokenizer={path}"]) == 0
        written = file if path == os.fspath(file) else folder / "tokenizer.json"
        assert f"\nWrote {written}\n" in capsys.readouterr().out
        found = tokenizers.Tokenizer.from_file(os.fspath(written))
        assert [found.encode(text).ids for text in TEXTS] == [own.encode(text) for text in TEXTS]
    assert any(own.encode(text) for text in TEXTS)
    assert main(["lm", "describe", bundle, f"--save_tokenizer={tmp_path}/no/such.json"]) == 1
    assert "no such folder; create it first" in capsys.readouterr().err


def test_describe_saves_the_tokenizer_of_sentencepiece(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "lm.task"
    path.write_bytes(llm_task())
    own = open_bundle(path).tokenizer()
    assert main(["lm", "describe", os.fspath(path), f"--save_tokenizer={tmp_path}"]) == 0
    assert f"\nWrote {tmp_path}/tokenizer.model\n" in capsys.readouterr().out
    found = sentencepiece.SentencePieceProcessor(model_file=f"{tmp_path}/tokenizer.model")
    assert [found.encode(text) for text in TEXTS] == [own.encode(text) for text in TEXTS]


def test_mistakes(bundle: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "m.tflite").write_bytes(multiplier())
    for arguments, says in (
        (["lm", f"--graph={bundle}"], "lm: expected one of run, benchmark, describe, got none"),
        (["lm", "describe"], "--graph is required"),
        (["lm", "describe", f"{tmp_path}/m.tflite"], "expected a bundle"),
        (["lm", "describe", f"{bundle}!embedder"], "remove '!embedder'"),
        (["analyze", bundle], "a bundle of 3 models: name one"),
    ):
        assert main(arguments) == 1
        assert says in capsys.readouterr().err


def test_analyze_prints_the_sections_first(bundle: str, capsys: Capture) -> None:
    assert main(["analyze", f"{bundle}!mtp_drafter"]) == 0
    sections, _, report = capsys.readouterr().out.partition("\n\n")
    assert "  audio_adapter      TFLiteModel" in sections
    assert "mtp_drafter ===" in report.splitlines()[0]
    assert "Op#0 MUL(" in report


@pytest.mark.parametrize("interpreter", ["jaxdelegate", "litert"])
def test_tools_open_models_in_bundles(
    interpreter: str, bundle: str, tmp_path: Path, capsys: Capture
) -> None:
    model = f"{bundle}!audio_adapter"
    flags = ["--signature_to_run_for=decode", "--num_runs=1", "--min_secs=0", "--warmup_runs=0"]
    assert main(["benchmark_model", model, f"--interpreter={interpreter}", *flags]) == 0
    result = tmp_path / "diff.json"
    reference = {"jaxdelegate": "numpy", "litert": "litert_builtin"}[interpreter]
    assert (
        main(["inference_diff", model, f"--result_json={result}", f"--reference={reference}"]) == 0
    )
    assert json.loads(result.read_text())["model"] == model
    capsys.readouterr()


def test_long_texts_are_shortened(tmp_path: Path, capsys: Capture) -> None:
    long = llm_metadata_pb2.LlmMetadata(jinja_prompt_template="a " * 100_000 + "\n" * 1000)
    long.start_token.token_str = "\x1b" * 100_000
    for i in range(1000):
        long.stop_tokens.add().token_str = f"<{i}>"
    sections = [(TYPES.LlmMetadataProto, {"k" * 999: "v" * 999}, long.SerializeToString())]
    path = tmp_path / "b.litertlm"
    path.write_bytes(litertlm([*sections, model_part("m" * 999)], properties={"p" * 999: "x"}))
    assert main(["lm", "describe", os.fspath(path)]) == 0
    printed = capsys.readouterr().out
    assert len(printed) < 10_000
    assert "'<59>', ..." in printed
    assert "\x1b" not in printed


TEMPLATE = (
    "{% for m in messages %}<{{ m.content[0].text }}>{% endfor %}"
    "{% if add_generation_prompt %}!{% if enable_thinking %}?{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that always thinks, and stops after 8 or 9 tokens of "hello"."""

    def edit(m: llm_metadata_pb2.LlmMetadata) -> None:
        channel = m.channels.add()
        channel.channel_name, channel.start, channel.end = "thought", "!", "2"
        m.stop_tokens.add().token_str = "Q"

    path = tmp_path_factory.mktemp("bundles") / "tiny.litertlm"
    path.write_bytes(language_bundle(TEMPLATE, edit=edit))
    return os.fspath(path)


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[Any]:
    from jaxdelegate.lm import Engine

    with Engine(model) as opened:
        yield opened


@pytest.fixture
def opened(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Commands use one engine, which is compiled once; the list has what they open it with."""
    arguments = list[dict[str, Any]]()

    def open_again(path: str, **given: Any) -> Any:
        assert path == engine.model_path
        arguments.append(given)
        return engine

    monkeypatch.setattr("jaxdelegate.lm.Engine", open_again)
    return arguments


def test_run_prints_an_answer_and_its_channels(model: str, run_tool: Run) -> None:
    assert run_tool("lm", "run", model, "--prompt", "hello", "--top-k=1") == (
        0,
        "[thought] Ni\ufffd@ [/thought]\n \\W]\n",
        "",
    )


@pytest.mark.usefixtures("opened")
def test_run_reads_a_prompt_from_a_pipe(
    model: str, run_tool: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = run_tool("lm", "run", model, "--prompt=a\nb\n").out
    monkeypatch.setattr("sys.stdin", io.StringIO("a\nb\n"))
    assert run_tool("lm", "run", model) == (0, want, "")


@pytest.mark.usefixtures("opened")
def test_run_without_a_template(model: str, run_tool: Run) -> None:
    with_template = run_tool("lm", "run", model, "--prompt=hello").out
    whole = run_tool("lm", "run", model, "--no_template", "--prompt=<hello>!").out
    assert whole == with_template.replace("[thought] ", "").replace(" [/thought]\n", "2")


def test_run_passes_flags_on(
    model: str, run_tool: Run, tmp_path: Path, opened: list[dict[str, Any]]
) -> None:
    usual = run_tool("lm", "run", model, "--prompt=hello").out
    template = tmp_path / "t.jinja"
    template.write_text(TEMPLATE.replace("!", "!?"))
    thinking = run_tool("lm", "run", model, "--prompt=hello", "--thinking=true").out
    assert run_tool("lm", "run", model, "--prompt=hello", f"--chat-template={template}").out == (
        thinking
    )
    for flag in ("--thinking=false", "--thinking-budget=0", "--temperature=0"):
        assert run_tool("lm", "run", model, "--prompt=hello", flag).out == usual != thinking
    short = run_tool("lm", "run", model, "--prompt=hello", "--thinking-budget=1").out
    thought = thinking.removeprefix("[thought] ").partition(" [/thought]")[0]
    assert len(thought) > 1
    assert short.startswith(f"[thought] {thought[0]} [/thought]\n")
    drawn = {
        run_tool("lm", "run", model, "--prompt=hello", "--top_k=40", f"--seed={seed}").out
        for seed in (1, 2)
    }
    assert len(drawn) == 2
    flags = (
        "--backend=cpu", "--jax_quant_mode=integer", "--max-num-tokens=99",
        "--cache-dir=:nocache", "--speculative-decoding=false", "--kv-cache-dtype=float32",
    )  # fmt: skip
    assert run_tool("lm", "run", model, "--prompt=hello", *flags).out == usual
    assert opened[-1] == {
        "backend": Backend.CPU(), "options": {"quant_mode": "integer"}, "max_num_tokens": 99,
        "cache_dir": ":nocache", "enable_speculative_decoding": False,
        "kv_cache_dtype": "float32",
    }  # fmt: skip


class _Terminal:
    def isatty(self) -> bool:
        return True


def _types(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    typed = iter(lines)

    def enter(prompt: str) -> str:
        assert prompt == "> "
        line = next(typed)
        if not isinstance(line, str):
            raise line
        return line

    monkeypatch.setattr("sys.stdin", _Terminal())
    monkeypatch.setattr(builtins, "input", enter)


@pytest.mark.usefixtures("opened")
def test_run_talks_until_control_d(
    model: str, run_tool: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_tool("lm", "run", model, "--prompt=hello").out
    _types(monkeypatch, "", "hello", KeyboardInterrupt, "x" * 200, EOFError)
    code, out, err = run_tool("lm", "run", model)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "[enter] submit | [ctrl+c] end the answer | [ctrl+d] exit"
    assert "\n".join(lines[2:]).startswith(f"{first}\nexpected at most 127 tokens")


@pytest.mark.usefixtures("opened", "signals_at_their_defaults")
def test_control_c_ends_an_answer(
    model: str, run_tool: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jaxdelegate.lm import Session

    asked = "lm", "run", model, "--no_template", "--prompt=a long answer"
    whole = run_tool(*asked).out
    original = Session.run_decode_async

    def interrupted(self: Session) -> Iterator[object]:
        for i, part in enumerate(original(self)):
            if i == 1:
                signal.raise_signal(signal.SIGINT)
            yield part

    monkeypatch.setattr(Session, "run_decode_async", interrupted)
    before = signal.getsignal(signal.SIGINT)
    code, out, _ = run_tool(*asked)
    assert code == 0
    begun, cancelled, _ = out.partition("\n[Generation cancelled]\n")
    assert cancelled
    assert len(begun) < 0.8 * len(whole)
    assert whole.startswith(begun)
    assert signal.getsignal(signal.SIGINT) is before


def test_benchmark(model: str, run_tool: Run) -> None:
    code, out, err = run_tool("lm", "benchmark", model, "-p", "16", "-d", "12", "--runs=3")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for line in (
        f"Benchmarking model: {model}",
        "Backend                    : cpu",
        "Number of tokens in prefill: 16",
        "Number of tokens in decode : 12",
        "Max number of tokens       : 28",
        "Speculative decoding       : false",
        "Running iteration 3 of 3..",
        "----- Results -----",
    ):
        assert line in lines
    results = dict(line.split(":") for line in lines[-4:])
    assert list(results) == ["Prefill speed", "Decode speed", "Init time", "Time to first token"]
    assert all(float(value.split()[0]) > 0 for value in results.values())
    assert [value.split()[1] for value in results.values()] == ["tokens/s"] * 2 + ["s"] * 2


def test_refused_flags(model: str, refused: Refuse, tmp_path: Path) -> None:
    assert "expected at most 128 tokens together (max_num_tokens), got 512" in refused(
        "lm", "benchmark", model
    )
    assert "--backend=gpu and --jax_platform=cpu contradict each other" in refused(
        "lm", "run", model, "--prompt=a", "--backend=gpu", "--jax_platform=cpu"
    )
    assert "expected a text, got none" in refused("lm", "run", model, "--no-template", "--prompt=")
    bad = tmp_path / "bad.jinja"
    bad.write_text("{% for %}")
    assert "chat template: syntax error" in refused(
        "lm", "run", model, "--prompt=a", f"--chat_template={bad}"
    )
    assert "Unknown command line flag 'attachment'" in refused(
        "lm", "run", model, "--attachment=a.png"
    )


@pytest.mark.parametrize("flags", [(), ("--backend=cpu",), ("--jax_platform=cpu",)])
@pytest.mark.parametrize("backend", [None, Backend.CPU()])
def test_it_runs_the_programs_that_an_engine_has_stored(
    model: str, run_tool: Run, tmp_path: Path, backend: Backend | None, flags: Sequence[str]
) -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("JAX's default device is not the CPU")
    folder = os.fspath(tmp_path / "programs")
    engine = Engine(model, backend, cache_dir=folder, options={"max_programs": 4})
    with engine, engine.create_conversation() as conversation:
        conversation.send_message("hello")
    stored = {entry.name for entry in list_entries(folder)}
    assert stored
    assert run_tool("lm", "run", model, "--prompt=hello", f"--cache_dir={folder}", *flags).code == 0
    assert {entry.name for entry in list_entries(folder)} == stored


def test_describe_images(tmp_path: Path, capsys: Capture) -> None:
    printed = []
    for content in (
        vision_bundle(),
        vision_bundle(encoder=pixel_encoder(), edit=gemma3),
        vision_bundle(edit=lambda _: None),
    ):
        (tmp_path / "sees.litertlm").write_bytes(content)
        assert main(["lm", "describe", f"--graph={tmp_path}/sees.litertlm"]) == 0
        printed.append(capsys.readouterr().out)
    assert (
        "\nImages\n  vision_4: up to 36 patches of 2 x 2 pixels\n  vision_12: up to 1" in printed[0]
    )
    assert "\nImages\n  vision_12: 12 x 12 pixels\n" in printed[1]
    assert "  vision_adapter: vision input is not supported" in printed[2]
    assert "Images" not in printed[2]


def test_describe_sounds(tmp_path: Path, capsys: Capture) -> None:
    printed = []
    for content in (
        sound_bundle(),
        sound_bundle(encoder=audio_adapter()),
        sound_bundle(edit=gemma3),
    ):
        (tmp_path / "hears.litertlm").write_bytes(content)
        assert main(["lm", "describe", f"--graph={tmp_path}/hears.litertlm"]) == 0
        printed.append(capsys.readouterr().out)
    assert "\nSounds\n  audio_4: 0.16 seconds at once, 128 mel bins for each 10 ms\n" in printed[0]
    assert "audio input is not supported" not in printed[0]
    for other in printed[1:]:
        assert "audio_encoder_hw: audio input is not supported" in other
        assert "Sounds" not in other


def test_run_with_sounds(tmp_path: Path, run_tool: Run, refused: Refuse) -> None:
    model, sound, image = (tmp_path / name for name in ("hears.litertlm", "a.wav", "b.png"))
    model.write_bytes(sound_bundle(sees=True))
    sound.write_bytes(sound_file_of(tone(1000)))
    image.write_bytes(file_of(picture(9, 40, seed=1)))
    flags = [f"--audio={sound}", f"--image={image}", "--prompt=what?", "--cache_dir=:nocache"]
    cpu = Backend.CPU()
    options: Any = {"vision_backend": cpu, "audio_backend": cpu, "cache_dir": ":nocache"}
    parts = Content.ImageFile(os.fspath(image)), Content.AudioFile(os.fspath(sound))
    with Engine(model, cpu, **options) as engine, engine.create_conversation() as conversation:
        answer = str(conversation.send_message(Contents.of(*parts, "what?")))
    found = run_tool("lm", "run", os.fspath(model), *flags)
    assert found.out == f"{printable(answer)}\n"
    flags = [flags[0], "--prompt=a", "--no_template"]
    assert "--audio: expected a chat template" in refused("lm", "run", os.fspath(model), *flags)


def test_run_with_images(tmp_path: Path, run_tool: Run, refused: Refuse) -> None:
    model, first, second = (tmp_path / name for name in ("sees.litertlm", "a.png", "b.jpg"))
    model.write_bytes(vision_bundle())
    first.write_bytes(file_of(picture(30, 20)))
    second.write_bytes(file_of(picture(9, 40, seed=1), "JPEG"))
    flags = [f"--image={first}", "--prompt=what?", "--cache_dir=:nocache"]
    cpu = Backend.CPU()
    with Engine(model, cpu, vision_backend=cpu, cache_dir=":nocache") as engine:
        for files in ([first], [first, second]):
            parts = [Content.ImageFile(os.fspath(file)) for file in files]
            with engine.create_conversation() as conversation:
                answer = str(conversation.send_message(Contents.of(*parts, "what?")))
            more = [f"--image={file}" for file in files[1:]]
            found = run_tool("lm", "run", os.fspath(model), *flags, *more)
            assert found.out == f"{printable(answer)}\n"  # without control characters
    assert "got --no_template" in refused("lm", "run", os.fspath(model), *flags, "--no_template")
    missing = refused("lm", "run", os.fspath(model), "--image=none.png", "--prompt=a")
    assert "none.png: No such file" in missing
