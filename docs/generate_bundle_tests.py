"""Write the table of tests by families of bundles in docs/bundles.md; pytest must collect all."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "bundles.md"
BEGIN, END = "<!-- table: docs/generate_bundle_tests.py -->", "<!-- end of table -->"
PLATFORMS = ("CPU", "GPU", "TPU")
HOST = "on the host"  # the same on all platforms

_GPU = "gpu/test_language_models.py::"
_ATTENTION = "lowering/rewrites/test_decode_attention.py::test_families"
_SYNTAX = "lm/test_tool_calls.py::test_syntaxes_of_families"
# Tests of GPUs that one has run, on 28 November 2026; other platforms have run none.
H200 = {
    f"{_GPU}test_tokens_are_those_of_the_numpy_kernels",
    f"{_GPU}test_drawn_tokens_are_those_on_a_cpu",
    f"{_GPU}test_drafted_tokens_are_those_of_plain_decoding",
}
# By family and feature: its tests, of a CPU, a GPU and a TPU.
ROWS: dict[tuple[str, str], tuple[str, ...]] = {
    **{
        (family, "attention"): (
            f"{_ATTENTION}[{name}]", f"{_GPU}test_attention_of_families[{name}-1]",
        )
        for family, name in (
            ("Llama", "llama"), ("Qwen3", "qwen3"), ("Gemma 2", "gemma2"), ("Gemma 3", "gemma3"),
        )
    },
    ("Gemma 4", "embedders, int8 caches"): (
        "lm/test_prompts_together.py::test_answers_are_those_of_prompts_one_by_one[gemma4]",
    ),
    ("Gemma 4", "drafter"): (
        "lm/test_drafter.py::test_answers_are_those_of_plain_decoding",
        f"{_GPU}test_drafted_tokens_are_those_of_plain_decoding",
    ),
    ("Gemma 4", "drafter in the server"): (
        "serve/test_openai_drafter.py::test_texts_are_those_without_it",
    ),
    ("Gemma 3n, Gemma 4", "rings of local layers"): (
        "lm/test_windows.py::test_sequences_in_slots",
    ),
    ("Gemma 4", "sounds"): ("lm/audio/test_sounds.py::test_embeddings_equal_those_of_numpy",),
    ("LFM2", "recurrent states"): ("lm/test_recurrent.py::test_sequences_in_slots",),
    ("EmbeddingGemma", "embeddings"): ("lm/test_embedding_engine.py::test_an_embedding",),
    ("Qwen3, ChatML", "thinking in the template"): (
        "lm/test_templates.py::test_thinking_is_off_only_if_asked", HOST, HOST,
    ),
    ("Gemma 3", "chat template"): ("lm/test_templates.py::test_gemma", HOST, HOST),
    ("Llama", "chat template"): ("lm/test_templates.py::test_llama", HOST, HOST),
    **{
        (family, "syntax of calls"): (f"{_SYNTAX}[{name}]", HOST, HOST)
        for family, name in (
            ("Qwen3", "qwen3-None-syntax0"),
            ("FunctionGemma", "function_gemma-None-syntax2"),
            ("Gemma 3", "gemma3-None-syntax4"),
            ("Gemma 4", "gemma4-<|tool_call>-syntax3"),
        )
    },
    ("Qwen3", "calls in the server"): (
        "serve/test_openai_tools.py::test_required_calls_match_their_schemas[qwen]",
    ),
    ("all", "greedy tokens"): (
        "lm/test_engine.py::test_a_session_continues_greedily",
        f"{_GPU}test_tokens_are_those_of_the_numpy_kernels",
    ),
    ("all", "drawn tokens"): (
        "lm/test_sampling.py::test_random_tokens_have_their_probabilities",
        f"{_GPU}test_drawn_tokens_are_those_on_a_cpu",
    ),
    ("all", "the server, clients at once"): (
        "serve/test_openai.py::test_streams_do_not_depend_on_each_other",
        f"{_GPU}test_clients_at_once_get_the_texts_of_an_engine_alone",
    ),
    ("all", "thinking budgets"): ("lm/test_thinking.py::test_the_prompt_opens_the_channel",),
}  # fmt: skip


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def table() -> str:
    """A row for each family and feature."""
    missing = sorted(set(tests()) - collected())
    if missing:
        raise ValueError(f"pytest does not collect: {', '.join(missing)}")
    lines = [f"| family | feature | {' | '.join(PLATFORMS)} |", "|---|---|---|---|---|"]
    for (family, feature), row in ROWS.items():
        filled = (*row, *("",) * (len(PLATFORMS) - len(row)))
        cells = map(_cell, PLATFORMS, filled)
        lines.append(f"| {family} | {feature} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(platform: str, test: str) -> str:
    if test == HOST:
        return HOST
    shown = "`" + test.replace("|", "\\|") + "`" if test else ""
    if platform == "CPU":
        return shown
    return f"an H200: {shown}" if test in H200 else "never run" + f": {shown}" * bool(shown)


def tests() -> Iterable[str]:
    """The tests that the table names."""
    return (test for row in ROWS.values() for test in row if test != HOST)


def collected() -> set[str]:
    """Tests in the files that the table names, also without their parameters."""
    files = sorted({f"tests/{test.partition('::')[0]}" for test in tests()})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", *files]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {line.removeprefix("tests/") for line in printed.splitlines() if "::" in line}
    return found | {test.partition("[")[0] for test in found}


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
