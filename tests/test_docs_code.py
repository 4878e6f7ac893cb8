"""The Python code of every section of every page runs alone, next to a model.tflite."""

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate import litert, providers
from jaxdelegate.op_lowering.options import CallOnceOptions, VarHandleOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.builder import SubgraphBuilder
from sample_tasks.tasks import TASKS
from tests.support.audio_models import file_of as sound_of
from tests.support.audio_models import sound_bundle, tone
from tests.support.bundles import litertlm, parts
from tests.support.language_models import (
    EXPORTED,
    adapter_factors,
    adapter_file,
    language_bundle,
    language_model,
)
from tests.support.text_encoders import embedding_bundle, text_encoder
from tests.support.vision_models import file_of, picture, vision_bundle

ROOT = Path(__file__).parents[1]
# A heading, or a block, whose group is its code if that is Python.
PART = re.compile(r"^#+ [^\n]*$|^```(?:python\n(.*?)|[^\n]*\n.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    "docs/errors.md": "tests/errors/test_wrong_uses.py runs its code",
    "docs/jax_recipes.md": "tests/test_recipes.py runs its code, and checks what it computes",
    "docs/lm_serving.md": "tests/serve/test_openai.py runs its code, with a server",
    "docs/ray.md": "tests/ray/test_page.py runs its code, on a Ray of its own",
    "docs/serving.md": "tests/serve/test_clients.py runs its code, with a server",
    "docs/sharding.md": "tests/test_sharding.py runs its code, on eight devices",
}
# Several seconds each.
SLOW = {"README.md", "docs/api/lm.md", "docs/api/tools.md", "docs/design/tuning.md"}
SLOW |= {"docs/lm.md", "docs/sensitivity.md"}


def images(folder: Path) -> None:
    """Two images with labels, and the model under its name on the page."""
    pillow = pytest.importorskip("PIL.Image", reason="the images need pillow")
    pytest.importorskip("pyarrow", reason="the rows are written as parquet")
    (folder / "model.tflite").rename(folder / "mobilenet_v2.tflite")
    val = folder / "ILSVRC2012" / "val"
    val.mkdir(parents=True)
    for name in ("1.png", "2.png"):
        pillow.fromarray(np.zeros((32, 32, 3), np.uint8)).save(val / name)
    (folder / "labels.txt").write_text("".join(f"label {i}\n" for i in range(32)))
    (folder / "truth.txt").write_text("label 1\nlabel 2\n")


def libraries(_folder: Path) -> None:
    """The two libraries that load_delegate and CompiledModel load."""
    try:
        litert.library_path(), litert.runtime_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def bundle(folder: Path) -> None:
    (folder / "gemma.litertlm").write_bytes(litertlm(parts()))


def language(folder: Path) -> None:
    model = language_model(capacity=1024)
    (folder / "model.litertlm").write_bytes(language_bundle(model=model))
    adapts = language_model(capacity=256, lora_ranks=(16,))
    (folder / "adapts.litertlm").write_bytes(language_bundle(model=adapts))
    for seed, name in enumerate(("poems", "laws")):
        factors = adapter_factors(EXPORTED, 16, seed)
        (folder / f"{name}.tflite").write_bytes(adapter_file(factors, 16))
    (folder / "encoder.litertlm").write_bytes(embedding_bundle(model=text_encoder((32, 64))))
    (folder / "sees.litertlm").write_bytes(vision_bundle(capacity=256))
    (folder / "hears.litertlm").write_bytes(sound_bundle(capacity=256))
    (folder / "speech.wav").write_bytes(sound_of(tone(4000)))
    (folder / "photo.jpg").write_bytes(file_of(picture(40, 30), "JPEG"))
    (folder / "drawing.png").write_bytes(file_of(picture(20, 30)))


def int8(folder: Path) -> None:
    (folder / "int8.tflite").write_bytes(TASKS["classification"].network(quantized=True))


def trainable(folder: Path) -> None:
    """A model as from TensorFlow's on-device training: its signatures share a variable."""
    builder, shape = ModelBuilder(), (1, 16, 16, 3)

    def read(graph: SubgraphBuilder) -> tuple[int, int, int]:
        x, w = graph.input(shape, name="x"), graph.tensor(shape, name="w")
        handle = graph.tensor((1,), np.dtype("V4"))
        graph.operator("CALL_ONCE", [], [], CallOnceOptions(init_subgraph_index=2))
        graph.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="w"))
        graph.operator("READ_VARIABLE", [handle], [w])
        return x, w, handle

    x, w, _ = read(builder)
    y = builder.tensor(shape, name="scores")
    builder.operator("MUL", [x, w], [y])
    builder.outputs(y)
    builder.signature("infer", {"x": x}, {"scores": y})
    train = builder.subgraph("train")
    x, w, handle = read(train)
    labels, new = train.input((8,), np.int32, "labels"), train.tensor(shape, name="loss")
    train.operator("SUB", [w, x], [new])
    train.operator("ASSIGN_VARIABLE", [handle, new], [])
    train.outputs(new)
    builder.signature("train", {"x": x, "labels": labels}, {"loss": new}, subgraph=1)
    first = builder.subgraph("initialize")
    handle = first.tensor((1,), np.dtype("V4"))
    first.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="w"))
    first.operator("ASSIGN_VARIABLE", [handle, first.constant(np.ones(shape, np.float32))], [])
    first.outputs()
    (folder / "trainable.tflite").write_bytes(builder.build())


# Other files and programs that a page needs.
FILES: dict[str, Callable[[Path], None]] = {
    "docs/api/bundles.md": bundle,
    "docs/bundles.md": bundle,
    "docs/api/lm.md": language,
    "docs/lm.md": language,
    "docs/evaluation.md": images,
    "docs/fine_tuning.md": int8,
    "docs/from_jax.md": int8,
    "docs/jax.md": trainable,
    "docs/stock_interpreters.md": libraries,
    "docs/api/litert.md": libraries,
}


def sections() -> Iterator[tuple[str, str, list[str]]]:
    """Pages, headings, and the Python blocks up to the next heading, which a reader copies."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        page, found = path.relative_to(ROOT).as_posix(), {"": list[str]()}
        for part in PART.finditer(path.read_text()):
            if part[0].startswith("#"):
                found[part[0]] = []
            elif part[1]:
                list(found.values())[-1].append(part[1])
        if page not in ELSEWHERE:
            yield from ((page, heading, blocks) for heading, blocks in found.items() if blocks)


@pytest.fixture
def _tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undoes what a page registers or sets."""
    providers.registered()
    monkeypatch.setattr(providers, "_PROVIDERS", list(providers._PROVIDERS))
    before, level = (dict(KERNELS), dict(RULES)), logging.getLogger("jaxdelegate").level
    yield
    for table, rows in zip((KERNELS, RULES), before, strict=True):
        table.clear()
        table.update(rows)
    logging.getLogger("jaxdelegate").setLevel(level)


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize(
    ("page", "blocks"),
    [
        pytest.param(page, blocks, id=f"{page}{heading}", marks=[pytest.mark.slow] * (page in SLOW))
        for page, heading, blocks in sections()
    ],
)
def test_the_code_of_a_section_runs(
    page: str,
    blocks: list[str],
    classifier: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "model.tflite").write_bytes(classifier)
    monkeypatch.chdir(tmp_path)
    FILES.get(page, lambda _folder: None)(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks:
            exec(compile(block, page, "exec"), names)
