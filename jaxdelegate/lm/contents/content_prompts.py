"""Where images and sounds are in a prompt.

Source: LiteRT-LM 0.18 (runtime/conversation/model_data_processor/multimodal_processor_helper.cc).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.bundles.metadata import EMBEDDING_FAMILY, LlmMetadata, token_of
from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.lm.contents.encoded_content import ContentRules, EncodedContent
from jaxdelegate.lm.soft_tokens import soft_tokens
from jaxdelegate.model.sections import EMBEDDING_METADATA
from jaxdelegate.text import printable


def start_token(metadata: LlmMetadata, field: str, default: str) -> str:
    """The token before an image or a sound, as the model's family declares it in a field."""
    own = getattr(metadata.proto.llm_model_type, metadata.model_type)
    token = token_of(getattr(own, field)) if own.HasField(field) else None
    return default if token is None or token.text is None else token.text


def embedding_family(bundle: Bundle, argument: str) -> Any:
    """What a bundle of a text encoder declares of images and sounds; None: it has another model.

    An OptionError: its family has none. `argument`: that asks for them.
    """
    if not any(section.type == EMBEDDING_METADATA for section in bundle.sections):
        return None
    declared = bundle.embedding_metadata().embedding_model_type
    family = declared.WhichOneof("model_type")
    if family != EMBEDDING_FAMILY:
        raise OptionError(
            f"{argument}: {printable(bundle.path)}: expected a text encoder of the family "
            f"{EMBEDDING_FAMILY}, got {family}"
        )
    return getattr(declared, family)


def content_prompt_ids(
    text: str,
    contents: Iterable[EncodedContent],
    rules: Sequence[ContentRules],
    tokenize: Callable[[str], list[int]],
) -> list[int]:
    """The tokens of a rendered text, and soft tokens in place of its placeholders.

    Args:
        text: of a template.
        contents: those of each kind in the order of their placeholders.
        rules: of the kinds that the engine takes; texts have no placeholders of them.
        tokenize: makes tokens of a part of the text.

    Raises:
        GenerationError: there are not as many placeholders of a kind as contents.
    """
    by_kind: dict[str, list[EncodedContent]] = {rule.kind: [] for rule in rules}
    for content in contents:
        by_kind[content.rules.kind].append(content)
    rule_of = {name: rule for rule in rules for name in rule.placeholders}
    pattern = "|".join(map(re.escape, rule_of))
    found = [*re.finditer(pattern, text)] if pattern else []
    for rule in rules:
        written = sum(rule_of[match[0]] is rule for match in found)
        _check_count(rule, len(by_kind[rule.kind]), written)
    ids, done = list[int](), 0
    rest = {kind: iter(own) for kind, own in by_kind.items()}
    for match in found:
        rule = rule_of[match[0]]
        ids += tokenize(text[done : match.start()] + rule.before)
        ids += soft_tokens(next(rest[rule.kind]))
        ids += tokenize(rule.after) if rule.after else []
        done = match.end()
    return ids + (tokenize(text[done:]) if text[done:] else [])


def _check_count(rule: ContentRules, wanted: int, written: int) -> None:
    if written != wanted:
        names = " or ".join(rule.placeholders)
        raise GenerationError(
            f"expected a prompt with {wanted} times {names}, one for each {rule.noun}, got "
            f"{written}: the chat template must write one for each {rule.noun}, and texts must not "
            "have any"
        )
