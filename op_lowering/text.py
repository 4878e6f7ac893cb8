"""Text: SKIP_GRAM, ParseExample, ParseExampleV2. XLA has no strings; these rules say so."""

from jaxdelegate.op_lowering.options import CustomOptions, Options, SkipGramOptions
from jaxdelegate.op_lowering.rule import Function, OpRule

_REASON = "strings stay on the host"


def _on_the_host(name: str, options_type: type[Options]) -> OpRule:
    def why_not(*_: object) -> str:
        return _REASON

    def lower(*_: object) -> Function:
        raise ValueError(f"{name}: {_REASON}")

    return OpRule(name, options_type, 1, why_not, lower)


SKIP_GRAM = _on_the_host("SKIP_GRAM", SkipGramOptions)
PARSE_EXAMPLE = _on_the_host("ParseExample", CustomOptions)
PARSE_EXAMPLE_V2 = _on_the_host("ParseExampleV2", CustomOptions)
