"""LiteRT-LM in its own Python, for bench/compare_language_models.py: see processes.serve."""

import shutil
import tempfile

import litert_lm
from processes import serve


def answers(path: str, prompts: list[str], tokens: int) -> list[str]:
    """What follows each prompt greedily, up to a number of tokens."""
    found = []
    with tempfile.TemporaryDirectory() as folder:  # it writes its cache next to the bundle
        copy = shutil.copy(path, folder)
        engine = litert_lm.Engine(str(copy), litert_lm.Backend.CPU(thread_count=1))
        greedy = litert_lm.SamplerConfig(top_k=1)
        for prompt in prompts:
            session = engine.create_session(sampler_config=greedy, max_output_tokens=tokens)
            session.run_prefill([prompt])
            found.append("".join(part.texts[0] for part in session.run_decode_async()))
            session.close()  # before the next one, which would not end
        engine.close()
    return found


if __name__ == "__main__":
    litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
    serve({"answers": answers})
