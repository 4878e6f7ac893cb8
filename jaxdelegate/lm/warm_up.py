"""The programs that a server compiles before requests need them, by the kinds of these requests."""

import itertools
from collections.abc import Collection, Mapping, Sequence

from jaxdelegate.lm.background_compiler import Work
from jaxdelegate.lm.contents.content_encoder import ContentEncoder
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.program_spec import ProgramSpec
from jaxdelegate.lm.sampling_params import Variant
from jaxdelegate.lm.scores import MOST_TOP

_MOST = 48  # programs; a model keeps a few more


def warm_programs(
    runner: ModelRunner, declared: Variant, kinds: Collection[str]
) -> list[tuple[str, ProgramSpec]]:
    """What requests of some kinds need, the likeliest first.

    With the programs of the kinds "any" and "long" no request waits; the others take less time.

    Args:
        runner: of programs.
        declared: what requests need that do not say how tokens are chosen.
        kinds: of `serve.settings.WARM_KINDS`.
    """
    shortest, *longer = runner.graph.cache_lengths
    found: dict[ProgramSpec, str] = {}
    for kind, variants in _variants(runner, declared).items():
        lengths = longer if kind == "long" else [shortest]
        for length, variant in itertools.product(lengths, variants if kind in kinds else ()):
            for spec in runner.specs.needed(length, variant):
                found.setdefault(spec, kind)
    if "logprobs" in kinds:  # those of prompts, too
        for spec in runner.specs.score_prompt(shortest):
            found.setdefault(spec, "logprobs")
    return [(kind, spec) for spec, kind in itertools.islice(found.items(), _MOST)]


def with_contents(
    programs: Sequence[tuple[str, Work]], own: str, encoder: ContentEncoder
) -> list[tuple[str, Work]]:
    """The programs, and an encoder's: of one row after the kind "any", of several as the last.

    Args:
        programs: by kind.
        own: the kind of the encoder's.
        encoder: of images or sounds.
    """
    first = next((i for i, (kind, _) in enumerate(programs) if kind != "any"), len(programs))
    one, several = ([(own, work) for work in encoder.works(of_several=n)] for n in (False, True))
    return [*programs[:first], *one, *programs[first:], *several]


def _variants(runner: ModelRunner, declared: Variant) -> Mapping[str, list[Variant]]:
    graph = runner.graph
    usual, large, *general = runner.specs.general_variants()
    ks = dict.fromkeys((declared.k, 1, usual.k))
    return {
        "any": general,
        "long": [declared, *general],
        "sampling": [declared, *map(Variant, ks), large],
        "json": [Variant(k, is_masked=True) for k in ks],
        "penalties": [Variant(k, has_logits_processors=True) for k in ks],
        "all_tokens": [Variant(graph.vocabulary)],
        "logprobs": [
            Variant(k, has_scores=True, top=top)
            for top in (0, min(MOST_TOP, graph.vocabulary))
            for k in ks
        ],
        "embeddings": [Variant(has_hidden_state=True)] if graph.hidden_size else [],
    }
