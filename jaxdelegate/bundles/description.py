"""A bundle as text: its sections, metadata, template, tokenizer, and its models' signatures."""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.bundles.metadata import IMAGE_FAMILIES, SOUND_FAMILIES, LlmMetadata
from jaxdelegate.bundles.tokenizers import TYPES
from jaxdelegate.model.open_models import open_model
from jaxdelegate.model.records import Model, Tensor
from jaxdelegate.model.sections import LLM_METADATA, TFLITE_MODEL, Section
from jaxdelegate.model.source import PART
from jaxdelegate.report.tables import table
from jaxdelegate.text import plural, printable, shortened, wrapped

_NUMBERED = re.compile(r"(.*?)(\d{1,9})")
_PRINTED = 60  # models, signatures, lines of a template, stop tokens
_MOST_CHARACTERS = 48  # in names
_LONGEST = 2000  # characters of a line or a text
_DRAFTER, _VISION, _AUDIO = "mtp_drafter", "vision_encoder", "audio_encoder_hw"
# Parts of LiteRT-LM's bundles by what they process, which text generation does not use.
_MODALITIES = ("vision", "audio")


def section_lines(bundle: Bundle) -> Iterator[str]:
    """A bundle's name and a line for each section."""
    size = f"{bundle.nbytes:,} bytes"
    yield f"{printable(bundle.path)}: {bundle.format} bundle, {size}"
    rows = [("name", "type", "offset", "bytes", "")]
    rows += [
        (_short(s.name), s.type, f"{s.offset:,}", f"{s.size:,}", _notes(s)) for s in bundle.sections
    ]
    yield from (f"  {line}" for line in table(rows, right=(2, 3)))


def _notes(section: Section) -> str:
    items = (f"{k}={v}" for k, v in section.items.items() if k.lower() != "model_type")
    unpacked = section.unpacked_size
    compressed = () if unpacked is None else (f"compressed, {unpacked:,} bytes unpacked",)
    return _short(", ".join((*items, *compressed)))


def _short(text: str) -> str:
    return _line(text, _MOST_CHARACTERS)


def _line(text: str, most: int = _LONGEST) -> str:
    return shortened(printable(shortened(text, most)), most)


def describe(bundle: Bundle) -> str:
    """What `jaxdelegate lm describe` prints. Errors are those of the bundle's properties."""
    types = {s.type for s in bundle.sections}
    models = dict(itertools.islice(bundle.models.items(), _PRINTED))
    parts = [*section_lines(bundle), *_titled("Properties", _pairs(bundle.properties))]
    if LLM_METADATA in types:
        parts += _titled("Language model", _pairs(_metadata(bundle.metadata, models)))
        parts += _titled("Chat template", (bundle.template or "").splitlines()[:_PRINTED])
    if types.intersection(TYPES):
        tokenizer = bundle.tokenizer()
        parts += _titled("Tokenizer", [f"{tokenizer.kind}, {plural(tokenizer.size, 'token')}"])
    for name, source in models.items():
        parts += _titled(f"Model {printable(name)}", _signatures(open_model(source)))
    typed = [s.name for s in bundle.sections if s.type == TFLITE_MODEL and s.model_type]
    family, unread = bundle.metadata.model_type if LLM_METADATA in types else "", [*_MODALITIES]
    if family in IMAGE_FAMILIES:
        unread.remove("vision")
        if _VISION in models:
            parts += _titled("Images", _images(open_model(models[_VISION])))
    hears = family in SOUND_FAMILIES and _AUDIO in models
    if hears and (sounds := [*_sounds(open_model(models[_AUDIO]))]):
        unread.remove("audio")
        parts += _titled("Sounds", sounds)
    unused = _unused(typed[:_PRINTED], unread)
    parts += _titled("Not used for text generation", unused)
    return wrapped("\n".join(parts))


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    indented = [f"  {_line(line)}" for line in lines]
    return ["", title, *indented] if indented else []


def _pairs(values: Mapping[str, object]) -> list[str]:
    rows = [(f"{_short(key)}:", _line(str(value))) for key, value in values.items()]
    return table(rows) if rows else []


def _metadata(m: LlmMetadata, models: Collection[str]) -> dict[str, object]:
    s = m.sampler
    sampler = s and f"{s.type}, k {s.k}, p {s.p:g}, temperature {s.temperature:g}, seed {s.seed}"
    stop = [_line(str(token)) for token in m.stop_tokens[: _PRINTED + 1]]
    more = ["..."] if len(stop) > _PRINTED else []
    facts = {
        "model type": m.model_type,
        "tokens at most": m.max_num_tokens,
        "start token": m.start_token,
        "stop tokens": ", ".join([*stop[:_PRINTED], *more]),
        "padding token": m.pad_token,
        "sampler": sampler,
        "channels": ", ".join(c.name for c in m.channels),
        "thinking": _yes(m.supports_thinking),
        "function calls": _yes(m.supports_function_calling),
        "speculative decoding": _yes(_DRAFTER in models),
        "runtime at least": m.min_runtime_version and f"LiteRT-LM {m.min_runtime_version}",
    }
    facts |= {f"{role}'s text": f"{a.prefix!r} ... {a.suffix!r}" for role, a in m.affixes.items()}
    return {key: value or "not declared" for key, value in facts.items()}


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _signatures(model: Model) -> Iterator[str]:
    for signature in model.signatures[:_PRINTED]:
        tensors = model.subgraphs[signature.subgraph].tensors
        yield signature.key
        rows = []
        for end, names in (("inputs", signature.inputs), ("outputs", signature.outputs)):
            rows += [(f"{end}:", "", ""), *_grouped({n: tensors[i] for n, i in names.items()})]
        yield from (f"  {line}" for line in table(rows))
    if not model.signatures:
        yield "no signatures"


def _grouped(tensors: Mapping[str, Tensor]) -> list[tuple[str, str, str]]:
    """Rows of names, dtypes and shapes; names that differ in their number share a row."""
    groups: dict[tuple[str, str], list[tuple[str, int | None]]] = {}
    for name, tensor in tensors.items():
        match = _NUMBERED.fullmatch(name)
        base, number = (match[1], int(match[2])) if match else (name, None)
        sizes = tensor.shape if tensor.shape_signature is None else tensor.shape_signature
        shape = ", ".join("?" if n < 0 else str(n) for n in sizes)
        key = base, f"{tensor.type.name} [{shape}]"
        groups.setdefault(key, []).append((name, number))
    return [
        (
            f"  {_short(_range(base, group))}",
            _short(what),
            f"{len(group)} of them" * (len(group) > 1),
        )
        for (base, what), group in groups.items()
    ]


def _range(base: str, group: list[tuple[str, int | None]]) -> str:
    numbers = sorted(n for _, n in group if n is not None)
    if len(group) == 1:
        return group[0][0]
    return f"{base}{numbers[0]}..{numbers[-1]}"


def _images(encoder: Model) -> Iterator[str]:
    """What the vision encoder takes, by signature."""
    for signature in encoder.signatures[:_PRINTED]:
        tensors = encoder.subgraphs[signature.subgraph].tensors
        shapes = [tensors[i].shape for i in signature.inputs.values()]
        sizes = [shape[1:3] for shape in shapes if len(shape) == 4]
        patches = [shape[1:] for shape in shapes if len(shape) == 3 and shape[2] > 2]
        if sizes:
            yield f"{signature.key}: {sizes[0][1]} x {sizes[0][0]} pixels"
        elif patches:
            side = math.isqrt(patches[0][1] // 3)
            yield f"{signature.key}: up to {patches[0][0]} patches of {side} x {side} pixels"


def _sounds(encoder: Model) -> Iterator[str]:
    """What the audio encoder takes, by signature; nothing if it takes something else."""
    for signature in encoder.signatures[:_PRINTED]:
        tensors = encoder.subgraphs[signature.subgraph].tensors
        shapes = [tensors[i].shape for n, i in signature.inputs.items() if n == "src_inputs"]
        if shapes and len(shapes[0]) == 3:
            seconds = f"{shapes[0][1] / 100:g} seconds"
            yield f"{signature.key}: {seconds} at once, {shapes[0][2]} mel bins for each 10 ms"


def _unused(models: Iterable[str], modalities: Iterable[str]) -> Iterator[str]:
    for name in models:
        kind = next((m for m in modalities if m in name), None)
        if kind is not None:
            yield f"{name}: {kind} input is not supported; the model alone runs as {PART + name!r}"
