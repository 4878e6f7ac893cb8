"""Phrases that read as translated, or that only we use, stay out of code and documentation."""

import functools
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".c", ".cc", ".css", ".h", ".html", ".inc", ".js", ".md", ".py", ".sh", ".toml", ".yml"}
OTHER_FILES = {"Makefile", "Dockerfile", ".ci/run"}
SPLIT = {"docs", "jaxdelegate", "op_lowering", "tests"}  # each file and folder is a room

# Regular expressions over text in lower case, and what to write instead. A space also matches a
# line break in a comment, in a docstring or between two parts of a string.
PHRASES = {
    r"all else": "everything else",
    r"anew": "again; starts over",
    r"answers (?:none|true|false|the|an?|its?|what|whether|where|each|outputs|zeros)": "returns",
    r"as (?:it lies|they lie)": "in its current layout; as stored",
    r"became of": "happened to; the result of",
    r"becomes? of": "happens to; the result of",
    r"beside": "next to; as well as; compared with",
    r"but for": "except for; apart from; without",
    r"by (?:itself|themselves)": "alone; on its own; automatically",
    r"by turns": "alternately",
    r"came of|comes of": "results from",
    r"comes? to know": "learns; is registered with",
    r"faces and tools": "front ends and tools",
    r"for ever": "forever",
    r"for nothing": "in vain; unnecessarily; free",
    r"for want of": "because there is no; without",
    r"from [01] on": "at least 0; at least 1",
    r"gives? way": "is evicted; yields",
    r"goe?s? together": "are compatible; are combined",
    r"goe?s? without": "does not need",
    r"hand-?over(?!\.)": "transfer; transfer cost",
    r"held short": "bounded",
    r"in passing": "at the same time; on the way",
    r"(?:is|are|was|were|be) asked for": "is requested",
    r"(?:is|are|was|were|be) told": "is given; receives; is reported",
    r"its like|their like|(?:its|one of its) kin": "of the same kind",
    r"(?:it|function|method|kernel|rule|call|what \w+) answers": "returns",
    r"knows? no": "does not know; is independent of",
    r"lies? (?:in|on|at|below|above|outside|where|elsewhere|as)": "is; is stored in",
    r"lies? (?:there|here|next to each other|side by side)": "is stored there; adjacent",
    r"mend(?:s|ed|ing)?": "fix; repair",
    r"no longer to be|not to be had|to be had": "not available; available",
    r"nobody": "no one; nothing; no caller",
    r"(?:of|in|on|from|by|with) whatever": "of any",
    r"(?:of|with) one's own": "custom; user-defined",
    r"otherwise than": "differently from",
    r"parted": "separated",
    r"said once": "defined once",
    r"says of itself|say of themselves": "declares",
    r"so many(?! (?:that|as))": "that many; n",
    r"so-manieth": "nth",
    r"somebody": "someone; a caller; another process",
    r"stands? (?:above|below|behind|alone)": "is; appears",
    r"stands? (?:twice|there|in (?:the|a|its)|at the|before|after|next|first)": "is; appears",
    r"strangers?": "untrusted sources",
    r"such a one": "one",
    r"tells? (?:which|what|whether|how|where|why|when|if)": "says; shows; determines",
    r"(?:that|which|they|it|results?) (?:is|are|was|were)(?: not)? there": "exists; available",
    r"the way of data": "data flow",
    r"there (?:is|are) none": "there is no ...; None if it does not exist",
    r"to the bit": "bit for bit; exactly",
    r"twins?": "counterpart",
    r"ways in": "guides",
    r"what (?:lies|stands)": "what is; the part that",
    r"what is there": "what exists; the available ...",
    r"who asks": "callers",
    r"whoever": "the caller; anyone who; the code that",
    r"without a word": "silently",
    r"without end": "endless; unlimited",
}
# Not phrases but forms: a docstring that continues another one, and messages.
FORMS = {
    r'"""(?:as|of) [^\n]*': "a sentence of its own in each docstring",
    r'"""the same[,. ][^\n]*': "a sentence of its own in each docstring",
    r": wants? (?:an?|at|the|one|numbers?|\d|'|\{|\[)[^\n]*": "expected X, got Y",
    r"\b(?<!there )is no (?!limit|longer|more|less|other|such|need|doubt|faster)\w+": "is not a",
}
# A file and the phrase that it may have, in lower case: why.
EXCEPTIONS = {
    ("docs/generate_device_programs.py", "which was not there"): "part of a name in bench/results",
    ("bench/absent_device.py", "which was not there"): "part of a name in bench/results",
    ("bench/compile_encoders.py", "which was not there"): "part of a name in bench/results",
    ("bench/compile_language_models.py", "which was not there"): "part of a name in bench/results",
    (
        "tests/bench/test_compile_for_gpu.py",
        "which was not there",
    ): "part of a name in bench/results",
    (
        "tests/bench/test_compile_for_tpu.py",
        "which was not there",
    ): "part of a name in bench/results",
    ("bench/handover.py", "handover"): "a name in bench/results",
}
_SPACE = r"""[\s#/"'*]+(?:f")?"""
INSTEAD = {re.compile(p.replace(" ", _SPACE)): better for p, better in PHRASES.items()}
INSTEAD |= {re.compile(form): better for form, better in FORMS.items()}
# One word boundary before all phrases: with one for each, the search takes five times as long.
ANY = re.compile(rf"\b(?:{'|'.join(PHRASES).replace(' ', _SPACE)})\b|{'|'.join(FORMS)}")


@functools.cache
def rooms() -> dict[str, list[str]]:
    """The text files of each folder and module of SPLIT, and of each other folder."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    if not (ROOT / ".git").exists():
        return {}
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = defaultdict(list)
    for name in listed.splitlines():
        path = Path(name)
        is_text = path.suffix in SUFFIXES or name in OTHER_FILES
        if is_text and (ROOT / path).is_file() and path.name != Path(__file__).name:
            depth = 2 if path.parts[0] in SPLIT else 1
            found["/".join(path.parts[:depth]).removesuffix(".py")].append(name)
    return found


def phrases(name: str) -> list[str]:
    """`file:line: phrase -> replacement` for each listed phrase in a file."""
    text = (ROOT / name).read_text(encoding="utf-8").lower()
    lines = []
    for match in ANY.finditer(text):
        if (name, match[0]) not in EXCEPTIONS:
            instead = next(i for p, i in INSTEAD.items() if p.match(text, match.start()))
            line = text.count("\n", 0, match.start()) + 1
            lines.append(f"{name}:{line}: {' '.join(match[0].split())} -> {instead}")
    return lines


@pytest.mark.parametrize("room", sorted(rooms()))
def test_words_are_plain(room: str) -> None:
    found = [line for name in rooms()[room] for line in phrases(name)]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_each_exception_is_needed() -> None:
    for (name, phrase), reason in EXCEPTIONS.items():
        assert reason
        assert phrase in (ROOT / name).read_text(encoding="utf-8").lower(), (name, phrase)
