"""Read damaged bundles: each is read, raises a JaxDelegateError, or is a finding.

    python -m tests.fuzz.run_bundles --count=2000
    python -m tests.fuzz.run_bundles --replay=1234

Bundle number n depends only on n. Half of the damage is done to the file, in its header or
anywhere; the rest to one section, whose bytes are packed again as an author of bundles would.
"""

import argparse
import functools
import random
import sys
from collections.abc import Callable, Sequence

from tests.fuzz.mutations import changed_bytes, mutated
from tests.fuzz.run_mutations import Tally, run
from tests.fuzz.workers import Worker
from tests.support import bundles
from tests.support.bundles import TYPES, litertlm, model_part, multiplier, zipped

# Sections by name, before they are packed: of one kind of bundle each.
_LITERTLM = {
    "metadata": bundles.llm_metadata,
    "json": bundles.hugging_face_json,
    "sentencepiece": bundles.sentencepiece_model,
    "prefill_decode": multiplier,
    "embedder": multiplier,
}
_TASK = {
    "TF_LITE_PREFILL_DECODE": multiplier,
    "TOKENIZER_MODEL": bundles.sentencepiece_model,
    "METADATA": bundles.llm_metadata,
}
_NESTED = {"hand_detector.tflite": multiplier, "labels.txt": lambda: b"left\nright"}
_EXECUTOR = b"\x0a\x05\x08\x80\x02\x12\x00"  # ExecutorMetadata with a state buffer


def _packed_litertlm(
    parts: dict[str, bytes], spans: Sequence[tuple[int, int]] | None = None
) -> bytes:
    sections = [
        (TYPES.LlmMetadataProto, {"count": 3, "scale": 0.5, "flag": True}, parts["metadata"]),
        (TYPES.HF_Tokenizer_Zlib, {}, bundles.compressed(parts["json"])),
        (TYPES.SP_Tokenizer, {}, parts["sentencepiece"]),
        (TYPES.ExecutorMetadataProto, {}, _EXECUTOR),
        *(model_part(f"tf_lite_{name}", parts[name]) for name in ("prefill_decode", "embedder")),
    ]
    return litertlm(sections, spans=spans, properties={"Authors": "tests"})


def _packed_nested(parts: dict[str, bytes]) -> bytes:
    return zipped({"hands.task": zipped(parts), "gestures.tflite": multiplier()})


KINDS: dict[str, tuple[dict[str, Callable[[], bytes]], Callable[[dict[str, bytes]], bytes]]] = {
    "litertlm": (_LITERTLM, _packed_litertlm),
    "task": (_TASK, zipped),
    "compressed": (_TASK, functools.partial(zipped, compress=_TASK)),
    "nested": (_NESTED, _packed_nested),
}
# Begins and ends of sections, some of which are right.
_OFFSETS = (*range(0, 5 * bundles.BLOCK, bundles.BLOCK), 900, 16809, 1 << 20, 1 << 32, 2**64 - 1)
_HEADER = 1200  # bytes of a small bundle's header


def _with_changed_bytes(content: bytes, number: int) -> tuple[bytes, str]:
    return changed_bytes(content, random.Random(number), content[::-1])


class DamagedBundles:
    """Bundles of the four kinds in turn."""

    def damaged(self, number: int) -> tuple[str, bytes, str]:
        """The kind, the content and the damage of a bundle."""
        kind = list(KINDS)[number % len(KINDS)]
        made, pack = KINDS[kind]
        rng, parts = random.Random(number), {name: make() for name, make in made.items()}
        if rng.random() < 0.5:
            name = rng.choice(list(parts))
            is_model = parts[name][4:8] == b"TFL3"
            damage = mutated if is_model else _with_changed_bytes
            parts[name], note = damage(parts[name], number)
            return kind, pack(parts), f"{name}: {note}"
        content = pack(parts)
        if kind == "litertlm" and rng.random() < 0.3:
            spans = [(rng.choice(_OFFSETS), rng.choice(_OFFSETS)) for _ in range(6)]
            return kind, _packed_litertlm(parts, spans), f"spans {spans}"
        if rng.random() < 0.5:  # the header, or a directory at the end
            cut = _HEADER if kind == "litertlm" else len(content) - _HEADER
            head, tail = content[:cut], content[cut:]
            if kind == "litertlm":
                head, note = _with_changed_bytes(head, number)
            else:
                tail, note = _with_changed_bytes(tail, number)
            return kind, head + tail, note
        return kind, *changed_bytes(content, rng, content[::-1])

    def content(self, kind: str) -> bytes:
        """A bundle without damage."""
        made, pack = KINDS[kind]
        return pack({name: make() for name, make in made.items()})


def check(numbers: Sequence[int], tally: Tally) -> int:
    """Read these bundles, print the findings, and return their number."""
    workers, count = {"bundle": Worker("bundle")}, 0
    try:
        for finding in run(DamagedBundles(), numbers, workers, 1, tally):
            outcome = finding["outcome"]
            print(f"--- {finding['finding']}: {finding['model']}, {finding['damage']}")
            print(f"{outcome.label}: {outcome.name}: {outcome.text[:400]}")
            print(outcome.stack[-1500:], flush=True)
            count += 1
    finally:
        workers["bundle"].close()
    return count


def main() -> None:
    """Read many bundles, or one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="of each kind")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--replay", type=int, metavar="NUMBER")
    options = parser.parse_args()
    numbers: Sequence[int] = range(options.first, options.first + options.count * len(KINDS))
    if options.replay is not None:
        numbers = [options.replay]
    tally = Tally()
    found = check(numbers, tally)
    print(dict(tally.counts["bundle"]), f"{found} findings, at most {tally.peak >> 20} MiB each")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
