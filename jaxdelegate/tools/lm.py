"""`jaxdelegate lm describe`: what a bundle of a language model contains."""

from absl import flags

from jaxdelegate.bundles.bundle import open_bundle
from jaxdelegate.bundles.description import describe
from jaxdelegate.providers.parsing import Flag

ACTIONS = ("describe",)
FLAGS = (Flag("graph", str, None, "The .litertlm or .task file.", is_required=True),)


def run(values: flags.FlagValues, action: str) -> int:
    """Print the bundle's sections, metadata, template, tokenizer and signatures."""
    del action  # there is only one yet
    print(describe(open_bundle(values.graph)))
    return 0
