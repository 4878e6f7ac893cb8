"""What the process of child.py runs: it limits itself, then answers questions.

It reads lines of JSON on stdin, and prints a line of JSON for each. It imports only the standard
library and what the script needs, so that it starts in some hundredths of a second.
"""

import contextlib
import json
import resource
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any


def _answered(answer: Callable[[Any], Any], line: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        # The system ends the process, also inside of a package in Rust.
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_seconds"])
        return {"answer": answer(asked["question"])}
    except BaseException as error:  # whatever it is, panics of Rust packages, too
        return {"error": str(error).partition("\n")[0] or type(error).__name__}
    finally:
        for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)


def _serve(answer: Callable[[Any], Any]) -> None:
    for line in sys.stdin.buffer:
        print(json.dumps(_answered(answer, line)), flush=True)


def main(settings: dict[str, Any]) -> None:
    """Answer questions until stdin ends."""
    sys.path[:] = settings["path"]
    for kind, limit in ((resource.RLIMIT_AS, settings["memory_bytes"]), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError):  # there is a stricter one
            resource.setrlimit(kind, (limit, limit))
    # A parent that ignores or blocks the signal passes that on.
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    threading.stack_size(settings["stack_bytes"])
    answer = runpy.run_path(settings["script"])["answer"]
    threading.Thread(target=_serve, args=(answer,)).start()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
