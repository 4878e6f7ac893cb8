"""`jaxdelegate lm run|benchmark|describe`: language models in bundles, as `litert-lm` has them."""

import importlib

from absl import flags

from jaxdelegate.bundles.bundle import open_bundle
from jaxdelegate.bundles.description import describe
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.text import printable

ACTIONS = ("run", "benchmark", "describe")
OPTIONS = ("platform", "compute_dtype", "quant_mode")
_BOOLEAN = ("true", "false")
FLAGS = (
    Flag("graph", str, None, "The .litertlm or .task file.", is_required=True),
    Flag("backend", str, None, "run, benchmark: as --jax_platform.", ("cpu", "gpu", "tpu")),
    Flag("cpu_thread_count", int, None, "run, benchmark: set NPROC instead.", lower=1),
    Flag("max_num_tokens", int, None, "run, benchmark: of prompt and answer, at most.", lower=1),
    Flag("cache_dir", str, None, "run, benchmark: for compiled programs; :nocache: not stored."),
    Flag("speculative_decoding", str, None, "run, benchmark: use the drafter.", _BOOLEAN),
    Flag("kv_cache_dtype", str, None, "run, benchmark: float16, int8_per_token_head, ..."),
    Flag("prompt", str, None, "run: a single prompt; its answer is printed."),
    Flag("image", str, None, "run: a file for the first message; repeatable.", repeats=True),
    Flag("audio", str, None, "run: a sound for the first message; repeatable.", repeats=True),
    Flag("chat_template", str, None, "run: a file with a Jinja template; default: the bundle's."),
    Flag("no_template", bool, False, "run: without a template; prompts have all special tokens."),
    Flag(
        "filter_channel_content_from_kv_cache", str, None,
        "run: forget reasoning.", _BOOLEAN,
    ),
    Flag("thinking", str, None, "run: whether the template asks the model to think.", _BOOLEAN),
    Flag("thinking_budget", int, None, "run: reasoning tokens; 0: none; -1: no limit.", lower=-1),
    Flag("top_k", int, None, "run: among how many tokens one is chosen.", lower=1),
    Flag("top_p", float, None, "run: the probability that they have together.", lower=0, upper=1),
    Flag("temperature", float, None, "run: 0: the most likely token.", lower=0),
    Flag("seed", int, None, "run: of the random numbers."),
    Flag("save_tokenizer", str, None, "describe: a file or folder for the tokenizer."),
    Flag("prefill_tokens", int, 256, "benchmark: tokens of the prompt.", lower=1, short="p"),
    Flag("decode_tokens", int, 256, "benchmark: tokens to generate.", lower=1, short="d"),
    Flag("runs", int, 1, "benchmark: how many; medians are printed.", lower=1),
)  # fmt: skip


def run(values: flags.FlagValues, action: str) -> int:
    if action == "describe":
        bundle = open_bundle(values.graph)
        print(describe(bundle))
        if values.save_tokenizer is not None:
            print(f"\nWrote {printable(bundle.tokenizer().save(values.save_tokenizer))}")
    else:
        actions = importlib.import_module("jaxdelegate.tools.lm_actions")  # imports jax
        getattr(actions, action)(values)
    return 0
