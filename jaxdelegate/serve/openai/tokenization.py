"""Tokens of texts and texts of tokens: vLLM's /tokenize, /detokenize and /tokenizer_info."""

from collections.abc import Sequence
from typing import Any

from jaxdelegate.serve.openai.fields import ApiError
from jaxdelegate.serve.openai.language_model import LanguageModel
from jaxdelegate.serve.openai.text_model import TextModel


def tokens(model: TextModel, text: str, *, has_start: bool) -> dict[str, Any]:
    ids = (model.engine.prompt_ids if has_start else model.engine.tokenizer.encode)(text)
    return {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}


def text(model: TextModel, ids: Sequence[int]) -> dict[str, Any]:
    tokenizer = model.engine.tokenizer
    unknown = next((i for i in ids if not tokenizer.has(i)), None)
    if unknown is not None:
        expected = f"expected ids of the tokenizer's {tokenizer.size} tokens, got {unknown}"
        raise ApiError(expected, param="tokens")
    return {"prompt": tokenizer.decode(ids)}


def info(model: LanguageModel) -> dict[str, Any]:
    """The response of /tokenizer_info: the fields of tokenizer_config.json that clients read."""
    processor, tokenizer = model.engine.text, model.engine.tokenizer
    start = processor.start_ids
    stops = [ids[0] for ids in processor.stops.sequences if len(ids) == 1]
    return {
        "tokenizer_class": f"{tokenizer.kind} tokenizer",
        "vocab_size": tokenizer.size,
        "model_max_length": model.max_model_len,
        "bos_token": tokenizer.token(start[0]) if start else None,
        "eos_token": tokenizer.token(stops[0]) if stops else None,
        "pad_token": tokenizer.token(processor.pad_id) if tokenizer.has(processor.pad_id) else None,
        "chat_template": processor.metadata.template,
    }
