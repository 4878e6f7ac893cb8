"""docs/generate_jax_models.py: the page for results of bench/jax_functions.py."""

import runpy
from pathlib import Path

PAGE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "generate_jax_models.py"))["page"]
MACHINE = {
    "cpu": "a CPU",
    "cores": 2,
    "versions": {"jax": "1", "jaxlib": "2", "numpy": "3"},
    "commit": "abc",
}
RAN = {
    "model": "b.tflite",
    "load": "ok",
    "jit": "ok",
    "vmap": "WRONG: output 0: off by 2 of 3",
    "grad": "3 of 4 leaves not zero; slope 1.001",
    "batch": "vmap: node 3 (RESHAPE) | whatever",
    "cpu": "ok: 1 convolution",
    "cuda": "ok: 2 convolution, 3 dot_general, 1 slice",
    "tpu": "ok: neither convolutions nor products",
    "machine": MACHINE,
}
REFUSED = {
    "model": "a.tflite",
    **dict.fromkeys(("load", "jit", "vmap", "grad", "batch", "cpu", "cuda"), "no: it is | <odd>"),
    "machine": MACHINE,
}


def test_a_row_for_each_model_and_a_line_for_each_reason() -> None:
    page = PAGE([RAN, REFUSED])
    assert "Of 2 models, these numbers work: load 1, jit 1, vmap 0, grad 1," in page
    assert "Wrong: 1. Measured on a CPU, 2 cores, with jax 1, jaxlib 2, numpy 3, at abc." in page
    rows = [line for line in page.splitlines() if ".tflite |" in line]
    assert rows == [
        "| a.tflite |" + " no (1) |" * 7 + " no (2) |",
        "| b.tflite | yes | yes | **wrong** (3) | 3/4 1.001 | vmap | yes | 5, 1 slices | - |",
    ]
    reasons = page.partition("## Reasons")[2]
    assert "1. it is / &lt;odd>\n2. it was not run\n3. output 0: off by 2 of 3\n" in reasons


def test_folders_of_a_machine_are_left_out() -> None:
    told = "no: ModelError: /some/where/models/x.tflite: Tensor.shape"
    assert "ModelError: x.tflite: Tensor.shape" in PAGE([{**REFUSED, "load": told}])
