"""The child process that compiles JSON schemas first; `schema_checks` starts it as a script.

It does not import the package, so that it starts in a tenth of a second. For each line with a
schema it writes a line with llguidance's error, in JSON. A schema that takes too much time, stack
or memory ends it.
"""

import json
import resource
import signal
import sys
import threading
from typing import Any


class _Bytes:
    """A tokenizer with a token for each byte: what a schema costs hardly depends on tokens."""

    bos_token_id = None
    eos_token_id = 256
    tokens = (*(bytes([i]) for i in range(256)), b"")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _error(package: Any, tokens: Any, grammar: str) -> str:
    matcher = package.LLMatcher(tokens, grammar, log_level=0)
    matcher.compute_bitmask()  # it checks limits, too
    return str(matcher.get_error())


def _answer(options: Any, seconds: int) -> None:
    import llguidance  # noqa: PLC0415 (the path is known only now)

    wrapped = llguidance.TokenizerWrapper(_Bytes())
    tokens, found = llguidance.LLTokenizer(wrapped, eos_token=[256]), ""
    for line in sys.stdin:
        signal.alarm(seconds)  # the system ends the process, also inside of llguidance
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(line, overrides=options)
            found = _error(llguidance, tokens, grammar)
        except ValueError as error:
            found = str(error)
        signal.alarm(0)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def _main(given: dict[str, Any]) -> None:
    sys.path[:] = given["path"]
    resource.setrlimit(resource.RLIMIT_AS, (given["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(given["stack_bytes"])
    threading.Thread(target=_answer, args=(given["options"], given["seconds"])).start()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
