"""Make .litertlm bundles of small language models, by litert-torch.

    python bench/make_language_models.py --out=bundles [--only=qwen3_wi8,llama_wi8] [--list]
        [--rows=200]

It needs an environment of its own: `pip install torch==2.13.0 litert-torch==0.10.0
transformers==5.20.0`, with torch's build for CPUs. A bundle takes half a minute to three minutes;
those that exist are kept. `--only` may name the larger ones (LARGE), which are not made otherwise.

Each token is a word of its own, with the space before it, so that tokens can be read off a text.
Weights are random, so wide that each layer changes the next token. Then they are trained for
`--train_steps` on sequences in which the last two words determine how likely the next ones are, so
that the model prefers some tokens, as real ones do. Without training the two best logits are so
close that the rounding of quantized activations decides between them in one of ten steps.

`--rows` writes as many questions about those sequences to rows.jsonl, for evaluate_bundles.py: a
context, three choices of how it goes on, which one is likeliest, and a longer `text` of that one.
"""

import contextlib
import dataclasses
import itertools
import json
import shutil
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "bundles", "The folder for the bundles.")
flags.DEFINE_list("only", None, "Names of bundles; all but the larger ones if not given.")
flags.DEFINE_bool("list", False, "Print the names only.")
flags.DEFINE_integer("train_steps", 300, "Of training; 0: random weights.", 0)
flags.DEFINE_integer("rows", 0, "Questions for bench/evaluate_bundles.py.", 0)

SPECIAL = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS, LENGTH = 128, 64  # of the sequences for training
CONTEXT, CONTINUATION, CHOICE = 32, 16, 3  # words of questions
_ENGLISH = "the quick brown fox jumps over a lazy dog and runs into wood where user model assistant"


@dataclasses.dataclass(frozen=True)
class Bundle:
    """What to make.

    Attributes:
        architecture: a name in ARCHITECTURES.
        recipe: of ai-edge-quantizer; None: float32 weights.
        sizes: fields of the Hugging Face configuration that differ from the tiny ones.
        options: of litert-torch's export that differ.
    """

    architecture: str
    recipe: str | None
    sizes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_large(self) -> bool:
        """Whether it is for measuring speed: its weights stay random."""
        return "vocab_size" in self.sizes


WI8, WI4, BLOCKS = "dynamic_wi8_afp32", "dynamic_wi4_afp32", "dynamic_wi4b32_afp32"
WEIGHT_ONLY = "weight_only_wi8_afp32"

# The configuration class of each, and fields that it needs besides the common ones.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 64, "query_pre_attn_scalar": 32}),
    "gemma4": (
        "Gemma4TextConfig",
        {
            "sliding_window": 64,
            "hidden_size_per_layer_input": 16,
            "global_head_dim": 64,
            "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "lfm2": (
        "Lfm2Config",
        {
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "num_hidden_layers": 4,
        },
    ),
    "llama": ("LlamaConfig", {}),
    "phi3": ("Phi3Config", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3Config", {}),
    # SmolLM2 is a Llama with tied embeddings and nine heads.
    "smollm2": (
        "LlamaConfig",
        {
            "hidden_size": 96,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "rope_theta": 100000.0,
        },
    ),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 4}),
}
TINY = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
EXPORT = {"prefill_lengths": [16, 64], "cache_length": 256, "bundle_litert_lm": True}

BUNDLES = {
    "gemma3_wi8": Bundle("gemma3", WI8),
    "gemma3_wi4": Bundle("gemma3", WI4),
    "gemma3_embedder": Bundle("gemma3", WI8, options={"externalize_embedder": True}),
    "qwen3_wi8": Bundle("qwen3", WI8),
    "qwen3_wi4": Bundle("qwen3", WI4),
    "qwen3_wi4_blocks": Bundle("qwen3", BLOCKS),
    "qwen3_float32": Bundle("qwen3", None),
    "qwen3_embedder": Bundle(
        "qwen3", WI8, options={"externalize_embedder": True, "single_token_embedder": True}
    ),
    "llama_wi8": Bundle("llama", WI8),
    "llama_weight_only": Bundle("llama", WEIGHT_ONLY),
    "llama_two_caches": Bundle("llama", WI8, options={"cache_lengths": [128, 256]}),
    "smollm2_wi4": Bundle("smollm2", WI4),
    "smollm3_wi8": Bundle("smollm3", WI8),
    "phi3_wi8": Bundle("phi3", WI8),
    "lfm2_wi8": Bundle("lfm2", WI8),
    "gemma4_per_layer": Bundle("gemma4", WI8, options={"externalize_embedder": True}),
}
_QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
_LONGER = {"prefill_lengths": [32, 128], "cache_length": 1024}
LARGE = {
    # As the real Qwen3-0.6B.
    "qwen3_0.6b": Bundle("qwen3", WI8, _QWEN3, {**_LONGER, "prefill_lengths": [32, 128, 512]}),
    "qwen3_0.6b_wi4": Bundle(
        "qwen3", BLOCKS, _QWEN3, {**_LONGER, "prefill_lengths": [32, 128, 512]}
    ),
    "qwen3_100mb": Bundle(
        "qwen3",
        WI8,
        {**_QWEN3, "vocab_size": 32768, "num_hidden_layers": 5},
        _LONGER,
    ),
    "smollm2_135m": Bundle(
        "smollm2",
        WI8,
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
        },
        _LONGER,
    ),
}


def words(count: int) -> list[str]:
    """That many different words: some of English, then consonants and vowels in turn."""
    syllables = ["".join(pair) for pair in itertools.product("bdfghjklmnprstvz", "aeiou")]
    made = ("".join(s) for n in (2, 3) for s in itertools.product(syllables, repeat=n))
    return list(itertools.islice(dict.fromkeys([*_ENGLISH.split(), *made]), count))


def tokenizer_json(size: int) -> str:
    """A tokenizer of SPECIAL and words; the letter Ġ stands for the space before each."""
    vocabulary = [*SPECIAL, *(f"Ġ{word}" for word in words(size - len(SPECIAL)))]
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": i, "content": t, "special": True, **off} for i, t in enumerate(SPECIAL)]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    ids = {token: i for i, token in enumerate(vocabulary)}
    model = {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {**bytes_, "use_regex": True},
            "decoder": bytes_,
            "model": model,
        }
    )


def export() -> Any:
    """litert-torch's export; 0.10.0 imports TensorFlow's schema, which LiteRT has too."""
    from ai_edge_litert import schema_py_generated  # noqa: PLC0415 (after the flags)

    for name in ("tensorflow", "tensorflow.lite", "tensorflow.lite.python"):
        sys.modules.setdefault(name, types.ModuleType(name))
    whole = "tensorflow.lite.python.schema_py_generated"
    sys.modules[whole] = schema_py_generated
    sys.modules["tensorflow.lite.python"].schema_py_generated = schema_py_generated  # type: ignore[attr-defined]
    from litert_torch.generative.export_hf import export as module  # noqa: PLC0415

    return module.export


def successors(before: torch.Tensor, last: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """A word has three successors; the word before it ranks the first two."""
    fixed = torch.Generator().manual_seed(0)
    next_ = torch.stack([torch.randperm(WORDS, generator=fixed) for _ in range(3)])
    ranks = torch.tensor([[0, 1, 2], [1, 0, 2]])
    return next_[ranks[before % 2, rank], last]


def sequences(random: torch.Generator, count: int) -> torch.Tensor:
    """[count, LENGTH]: tokens of words that follow each other as `successors` says."""
    chances = torch.tensor([0.7, 0.2, 0.1])
    found = [torch.randint(0, WORDS, (count,), generator=random) for _ in range(2)]
    while len(found) < LENGTH:
        drawn = torch.multinomial(chances, count, replacement=True, generator=random)
        found.append(successors(found[-2], found[-1], drawn))
    return torch.stack(found, 1) + len(SPECIAL)


def questions(count: int) -> list[dict[str, Any]]:
    """The choices begin with each of the three successors, the right one not always first."""
    contexts = sequences(torch.Generator().manual_seed(2), count)[:, :CONTEXT] - len(SPECIAL)
    own, found = words(WORDS), list[dict[str, Any]]()
    for number, context in enumerate(contexts):
        texts = []
        for rank in range(3):
            tokens = [*context]
            for step in range(CONTINUATION):
                place = torch.tensor(0 if step else rank)
                tokens.append(successors(tokens[-2], tokens[-1], place))
            texts.append([own[int(t)] for t in tokens[CONTEXT:]])
        order = [(number + i) % 3 for i in range(3)]
        row = {"context": " ".join(own[int(t)] for t in context)}
        row["choices"] = [" ".join(texts[i][:CHOICE]) for i in order]
        found.append({**row, "answer": order.index(0), "text": " ".join(texts[0])})
    return found


def train(model: torch.nn.Module, steps: int) -> None:
    random, rate = torch.Generator().manual_seed(1), 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(steps):
        tokens = sequences(random, 8)
        logits = model(input_ids=tokens).logits[:, 1:-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"loss {loss.item():.2f}; of the sequences 0.80, without their context 1.10")
    model.eval()


def save_source(bundle: Bundle, folder: Path) -> None:
    """A Hugging Face folder: weights, and the tokenizer."""
    class_, own = ARCHITECTURES[bundle.architecture]
    sizes = {**TINY, **own, **bundle.sizes}
    if bundle.architecture == "gemma4":
        sizes["vocab_size_per_layer_input"] = sizes["vocab_size"]
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    wide = {"initializer_range": sizes["hidden_size"] ** -0.5}
    config = getattr(transformers, class_)(**sizes, **ids, **wide)
    if bundle.architecture == "gemma4":  # the export's class for per-layer embeddings takes this
        config = transformers.Gemma4Config(text_config=config, vision_config=None)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # not 0: XNNPACK does not accept blocks of int4 with a scale of 0
        model.get_input_embeddings().weight[0].normal_(std=wide["initializer_range"])
    if FLAGS.train_steps and not bundle.is_large:
        train(model, FLAGS.train_steps)
    model.save_pretrained(folder)
    path = folder / "tokenizer.json"
    path.write_text(tokenizer_json(sizes["vocab_size"]), encoding="utf-8")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)


def make(bundle: Bundle, path: Path, sources: Path) -> None:
    source = sources / (path.stem if bundle.is_large else bundle.architecture)
    log = path.with_suffix(".log")
    with (
        tempfile.TemporaryDirectory() as out,
        log.open("w", encoding="utf-8") as file,
        contextlib.redirect_stdout(file),
    ):
        if not source.exists():
            save_source(bundle, source)
        options = {**EXPORT, **bundle.options, "quantization_recipe": bundle.recipe or "none"}
        export()(model=str(source), output_dir=out, **options)
        (made,) = Path(out).rglob("*.litertlm")
        shutil.move(made, path)
    log.unlink()


def main(arguments: list[str]) -> None:
    del arguments
    torch.set_num_threads(1)
    known = {**BUNDLES, **LARGE}
    if FLAGS.list:
        print("\n".join(known))
        return
    folder = Path(FLAGS.out)
    folder.mkdir(parents=True, exist_ok=True)
    if FLAGS.rows:
        lines = map(json.dumps, questions(FLAGS.rows))
        (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as sources:
        for name in FLAGS.only or BUNDLES:
            path = folder / f"{name}.litertlm"
            if path.exists():
                continue
            start = time.perf_counter()
            try:
                make(known[name], path, Path(sources))
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            seconds = time.perf_counter() - start
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    app.run(main)
