"""Write docs/operators.md from the registry and the operator tests.

A row's dtypes are those of the first run-time input in the test cases that the rule lowers: what
is listed is tested. peers.json holds what other runtimes registered: LiteRT and its delegates at
google-ai-edge/LiteRT f6745779, OpenVINO's TFLite frontend at 18567185, TVM's relax frontend at
5d4dc872.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.reference import KERNELS
from jaxdelegate.testing import Case
from tests.support.case_tables import cases_in

ROOT = Path(__file__).parents[1]
MARKERS = ("CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES")

COLUMNS = (
    "operator",
    "runs on",
    "version",
    "LiteRT CPU",
    "tested dtypes",
    "GPU delegate",
    "ML Drift",
    "OpenVINO",
    "TVM",
)
HEAD = """# Operators

For anyone who wants to know whether jaxdelegate can run an operator. To check a whole model, run
`jaxdelegate analyze --graph=model.tflite`.

| column | meaning |
|---|---|
| runs on | *XLA*: the delegate supports the operator. *host*: only the numpy reference runs it. *constant*: it has no inputs, and is folded before the first run. *-*: not supported |
| version | the newest supported version of the operator |
| LiteRT CPU | the newest version that LiteRT's CPU runtime registers (-: none) |
| tested dtypes | dtypes of the first run-time input in the tests of the XLA lowering (q: quantized); other dtypes may also work |
| GPU delegate, ML Drift, OpenVINO, TVM | whether TFLite's GPU delegate, LiteRT's ML Drift delegate, or the TFLite frontends of OpenVINO and TVM register it |

The delegate may not support some combinations of an operator's options and shapes. Such operators run on the host, and the
delegation report gives the reason. `python docs/generate_operators.py` writes this page; a test checks that it is current.
"""  # noqa: E501 (the rows of a table)


def cases() -> Iterator[Case]:
    """Every case of the operator tables in the tests."""
    tables = cases_in(ROOT / "tests" / "op_lowering", ("CASES", "LOWERED", "MOVED"))
    return itertools.chain.from_iterable(tables.values())


def lowered_dtypes() -> dict[str, set[str]]:
    """For each operator the dtypes of the cases that its rule accepts."""
    found = defaultdict(set)
    for case in cases():
        rule = RULES.get(case.name)
        if rule is None:
            continue
        live = [a for a in case.inputs if a is not None and not a.is_const]
        context = LoweringContext(op_version=case.version, quant_mode="integer")
        if live and rule.reason(case.op(context)) is None:
            quantized = "q" if live[0].quantization is not None else ""
            found[case.name].add(f"{quantized}{live[0].value.dtype}")
    return found


def row(name: str, dtypes: set[str], peers: dict[str, Any]) -> str:
    """The row of an operator."""
    rule = RULES.get(name)
    where = "XLA"
    if rule is None or rule.host_reason is not None:
        where = host(name)
    litert = peers["litert_cpu_versions"].get(name, "-")
    yes = ["yes" if name in peers[p] else "" for p in ("gpu_delegate_v2", "ml_drift", "openvino")]
    tvm = "yes" if name.isupper() and name not in peers["tvm_relax_lacks"] else ""
    version = rule.max_version if rule is not None else ""
    listed = " ".join(sorted(dtypes))
    return f"| {name} | {where} | {version} | {litert} | {listed} | {' | '.join(yes)} | {tvm} |"


def host(name: str) -> str:
    """Where an operator runs that XLA never runs."""
    kernel = KERNELS.get(name)
    if kernel is None:
        return "-"
    return "constant" if kernel.most_inputs == 0 and not kernel.calls else "host"


def generate() -> str:
    """The whole page."""
    peers = json.loads((ROOT / "docs" / "peers.json").read_text())
    dtypes = lowered_dtypes()
    builtin = [n for n in vars(schema.BuiltinOperator) if n[0] != "_" and n not in MARKERS]
    custom = sorted({*RULES, *KERNELS} - set(builtin))
    rows = [row(name, dtypes[name], peers) for name in (*sorted(builtin), *custom)]
    reasons = {n: r.host_reason for n, r in sorted(RULES.items()) if r.host_reason}
    reasons = {n: reason for n, reason in reasons.items() if host(n) != "constant"}
    table = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *rows]
    tail = ["", "Always on the host, with the reason that the delegation report gives:", ""]
    tail += [f"* {name}: {reason}" for name, reason in reasons.items()]
    return "\n".join([HEAD, *table, *tail, ""])


if __name__ == "__main__":
    (ROOT / "docs" / "operators.md").write_text(generate())
