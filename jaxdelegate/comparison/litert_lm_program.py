"""The process of litert_lm.py: reads a request as JSON on stdin, and prints LiteRT-LM's texts.

It imports only the standard library and litert_lm, so that any Python can run it.
"""

import importlib.metadata
import json
import os
import sys


def texts(model: str, prompts: list[str], max_output_tokens: int) -> list[str]:
    """What follows each prompt greedily, up to a number of tokens."""
    import litert_lm  # noqa: PLC0415 (only this process has it)

    litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
    greedy = litert_lm.SamplerConfig(top_k=1)
    answers = []
    with litert_lm.Engine(model, litert_lm.Backend.CPU(), cache_dir=":nocache") as engine:
        for prompt in prompts:
            with engine.create_session(  # one at a time: another one would wait for it
                apply_prompt_template=False,
                sampler_config=greedy,
                max_output_tokens=max_output_tokens,
            ) as session:
                session.run_prefill([prompt])
                answers.append("".join(part.texts[0] for part in session.run_decode_async()))
    return answers


def main() -> None:
    """Print one line of JSON; what LiteRT-LM prints goes to stderr."""
    result = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    version = importlib.metadata.version("litert-lm-api")
    answers = texts(**json.load(sys.stdin))
    json.dump({"version": version, "texts": answers}, result)


if __name__ == "__main__":
    main()
