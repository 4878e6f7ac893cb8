"""What `jaxdelegate lm run` and `lm benchmark` do; the output is as `litert-lm` prints it."""

import contextlib
import importlib
import signal
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from jaxdelegate import lm
from jaxdelegate.errors import JaxDelegateError, OptionError
from jaxdelegate.lm.configs import BACKENDS
from jaxdelegate.tools import delegate_flags


def benchmark(values: flags.FlagValues) -> None:
    measured = lm.Benchmark(
        values.graph,
        prefill_tokens=values.prefill_tokens,
        decode_tokens=values.decode_tokens,
        max_num_tokens=values.max_num_tokens,
        **_engine_arguments(values),
    )
    platform = measured.engine.platform  # opens it
    print(f"Benchmarking model: {values.graph}")
    print(f"Backend                    : {platform}")
    print(f"Number of tokens in prefill: {values.prefill_tokens}")
    print(f"Number of tokens in decode : {values.decode_tokens}")
    print(f"Max number of tokens       : {measured.engine.max_num_tokens}")
    print(f"Speculative decoding       : {values.speculative_decoding or 'false'}")
    runs = []
    for i in range(values.runs):
        print(f"Running iteration {i + 1} of {values.runs}..", flush=True)
        runs.append(measured.run())

    def median(figure: str) -> float:
        return float(statistics.median(getattr(info, figure) for info in runs))

    print("----- Results -----")
    print(f"Prefill speed:        {median('last_prefill_tokens_per_second'):.2f} tokens/s")
    print(f"Decode speed:         {median('last_decode_tokens_per_second'):.2f} tokens/s")
    print(f"Init time:            {runs[0].init_time_in_second:.4f} s")
    print(f"Time to first token:  {median('time_to_first_token_in_second'):.4f} s")


def _engine_arguments(values: flags.FlagValues) -> dict[str, Any]:
    options = delegate_flags.given_options(values)
    platform = values.backend or options.get("platform")
    if values.backend and options.get("platform", values.backend) != values.backend:
        raise OptionError(
            f"--backend={values.backend} and --jax_platform={options['platform']} contradict each "
            "other; give one"
        )
    if values.cpu_thread_count is not None:
        platform = platform or "cpu"
    threads = {"thread_count": values.cpu_thread_count} if platform == "cpu" else {}
    backend = None if platform is None else BACKENDS[platform](**threads)
    drafts = None if values.speculative_decoding is None else values.speculative_decoding == "true"
    return {
        "backend": backend,
        "options": options,
        "cache_dir": values.cache_dir,
        "enable_speculative_decoding": drafts,
        "kv_cache_dtype": values.kv_cache_dtype or "auto",
    }


# ---- run


def run(values: flags.FlagValues) -> None:
    arguments = _engine_arguments(values)
    for flag, backend in (("image", "vision_backend"), ("audio", "audio_backend")):
        if getattr(values, flag):
            _check_template(flag, values)
            arguments[backend] = arguments["backend"] or lm.Backend()
    engine = lm.Engine(values.graph, max_num_tokens=values.max_num_tokens, **arguments)
    sampler = None
    settings = {name: getattr(values, name) for name in ("top_k", "top_p", "temperature", "seed")}
    if any(value is not None for value in settings.values()):
        sampler = lm.SamplerConfig(**settings)
    if values.no_template:
        _talk(values.prompt, _RawPrompts(engine, sampler))
    else:
        _talk(values.prompt, _Conversation(engine, sampler, values))


def _check_template(flag: str, values: flags.FlagValues) -> None:
    if values.no_template:
        raise OptionError(
            f"--{flag}: expected a chat template, got --no_template; give one of both"
        )


def _talk(prompt: str | None, model: "_RawPrompts | _Conversation") -> None:
    """Answer the prompt; or what standard input has; or what is typed."""
    if prompt is not None:
        _answer(prompt, model)
    elif not sys.stdin.isatty():
        _answer(sys.stdin.read(), model)
    else:
        print("[enter] submit | [ctrl+c] end the answer | [ctrl+d] exit\n")
        for typed in _typed():
            try:
                _answer(typed, model)
            except JaxDelegateError as error:
                print(error)


def _typed() -> Iterator[str]:
    with contextlib.suppress(ImportError):  # not on Windows
        importlib.import_module("readline")  # gives input() a history
    while True:
        try:
            typed = input("> ")
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print()
            return
        if typed:
            yield typed


def _answer(prompt: str, model: "_RawPrompts | _Conversation") -> None:
    with _interrupts(model) as interrupted:
        for text in model.answer(prompt):
            print(text, end="", flush=True)
    print("\n[Generation cancelled]" if interrupted else "")


@contextlib.contextmanager
def _interrupts(model: "_RawPrompts | _Conversation") -> Iterator[list[int]]:
    """Let Ctrl-C end an answer between two steps, a second one the program; the list has them."""
    seen = list[int]()

    def cancel(number: int, _: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        model.runner.cancel_process()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


class _RawPrompts:
    def __init__(self, engine: Any, sampler: Any) -> None:
        self.runner = engine.create_session(apply_prompt_template=False, sampler_config=sampler)

    def answer(self, prompt: str) -> Iterator[str]:
        if not prompt:
            raise OptionError("prompt: expected a text, got none")
        self.runner.run_prefill([prompt])
        for part in self.runner.run_decode_async():
            yield from part.texts


class _Conversation:
    """Prompts are a user's messages; channels are shown as `[thought] ... [/thought]`."""

    def __init__(self, engine: Any, sampler: Any, values: flags.FlagValues) -> None:
        path, forgets = values.chat_template, values.filter_channel_content_from_kv_cache
        self.runner = engine.create_conversation(
            sampler_config=sampler,
            chat_template=None if path is None else Path(path).read_text(encoding="utf-8"),
            thinking_config=_thinking(values),
            filter_channel_content_from_kv_cache=None if forgets is None else forgets == "true",
        )
        images = map(lm.Content.ImageFile, values.image or ())
        self._files = [*images, *map(lm.Content.AudioFile, values.audio or ())]

    def answer(self, prompt: str) -> Iterator[str]:
        message = lm.Contents.of(*self._files, prompt) if self._files else prompt
        open_channel, self._files = None, []
        for part in self.runner.send_message_async(message):
            channel = next(iter(part.channels), None)
            if channel != open_channel:
                yield f" [/{open_channel}]\n" if open_channel is not None else ""
                yield f"[{channel}] " if channel is not None else ""
                open_channel = channel
            yield str(part) if channel is None else part.channels[channel]
        if open_channel is not None:
            yield f" [/{open_channel}]"


def _thinking(values: flags.FlagValues) -> Any:
    budget = values.thinking_budget
    if values.thinking is None and budget is None:
        return None
    is_enabled = budget != 0 if values.thinking is None else values.thinking == "true"
    if budget is None:
        budget = -1 if is_enabled else 0
    return lm.ThinkingConfig(is_enabled, budget)
