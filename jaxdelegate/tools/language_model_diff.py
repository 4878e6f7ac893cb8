"""The flags of `jaxdelegate inference_diff` for a bundle's language model, and what it prints."""

import dataclasses
from pathlib import Path

from absl import flags

from jaxdelegate.comparison.language_models import LANGUAGE_MODEL_REFERENCES as REFERENCES
from jaxdelegate.comparison.language_models import PROMPTS, language_model_diff
from jaxdelegate.comparison.litert_lm import LITERT_LM, Process
from jaxdelegate.comparison.serialized import record
from jaxdelegate.comparison.text import language_model_summary
from jaxdelegate.errors import OptionError
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.report.json_records import write_json
from jaxdelegate.text import wrapped
from jaxdelegate.tools import comparison_flags, delegate_flags

REFERENCE = dataclasses.replace(
    comparison_flags.REFERENCE,
    choices=REFERENCES,
    help=f"{comparison_flags.REFERENCE.help} For a bundle's language model also LiteRT-LM, which "
    "is then the default.",
)
FLAGS = (
    Flag("prompt", str, None, "Language model: a prompt; unset: a few short texts."),
    Flag("prompt_file", str, None, "Language model: a file with a prompt in each line."),
    Flag("max_output_tokens", int, 32, "Language model: the most tokens of an answer.", lower=1),
    Flag(
        "reference_timeout_s", int, 600, "Language model: seconds that LiteRT-LM may take.", lower=1
    ),
)
_ALSO = ("graph", "model_file", "reference", "against", "result_json")  # mean the same here


def is_healthy(values: flags.FlagValues) -> bool:
    options = delegate_flags.given_options(values)
    _refuse_flags_of_models(values)
    result = language_model_diff(
        values.graph,
        reference=values.reference if values["reference"].present else LITERT_LM,
        against=values.against or None,
        prompts=_prompts(values),
        max_output_tokens=values.max_output_tokens,
        cache_dir=options.pop("serialization_dir", None),
        options=options,
        litert_lm=Process(timeout_s=values.reference_timeout_s),
    )
    print(wrapped(language_model_summary(result)))
    if values.result_json:
        write_json(values.result_json, record(result))
    return result.is_healthy


def refuse(values: flags.FlagValues) -> None:
    present = [f"--{flag.name}" for flag in FLAGS if values[flag.name].present]
    if values.reference == LITERT_LM:
        present.append(f"--reference={LITERT_LM}")
    if present:
        raise OptionError(
            f"{present[0]}: expected a bundle with a language model, got {values.graph}"
        )


def _refuse_flags_of_models(values: flags.FlagValues) -> None:
    known = {*_ALSO, *(flag.name for flag in FLAGS)}
    for name in values:
        if values[name].present and name not in known and not name.startswith("jax_"):
            raise OptionError(
                f"--{name} does not apply to the language model of a bundle; it does to a model, "
                f"--graph={values.graph}!prefill_decode"
            )


def _prompts(values: flags.FlagValues) -> tuple[str, ...]:
    if values.prompt_file is None:
        return PROMPTS if values.prompt is None else (values.prompt,)
    if values.prompt is not None:
        raise OptionError("--prompt and --prompt_file: give one, got 2")
    lines = Path(values.prompt_file).read_text(encoding="utf-8").splitlines()
    if not any(lines):
        raise OptionError(f"--prompt_file={values.prompt_file}: expected a prompt, got none")
    return tuple(line for line in lines if line)
