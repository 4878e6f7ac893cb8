"""Event handlers of the page, without a browser."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sample_tasks.tasks import TASKS
from tests.support.networks import small_classifier
from web_demo import video
from web_demo.engines import LITERT, REFERENCE

if TYPE_CHECKING:
    from web_demo.handlers import Handlers

is_absent = importlib.util.find_spec("gradio") is None
pytestmark = pytest.mark.skipif(is_absent, reason="needs Gradio")

GENERATED, IMAGE, VIDEO, LIVE = "Generated", "Image", "Video", "Live camera"
UPLOAD = ".tflite file"
BOTH = (REFERENCE.name, LITERT.name)
IMAGE_OF = np.random.default_rng(0).integers(0, 256, (30, 50, 3)).astype(np.uint8)


@pytest.fixture
def handlers(tmp_path: Path) -> "Handlers":
    from web_demo.handlers import Handlers  # it imports Gradio, which takes seconds

    return Handlers(str(tmp_path))


def run(handlers: "Handlers", **more: Any) -> Sequence[Any]:
    """The last update of the page."""
    return everything(handlers, **more)[-1]


def everything(handlers: "Handlers", **more: Any) -> list[Any]:
    from web_demo.handlers import Choice

    values = dict.fromkeys(Choice.__dataclass_fields__)
    values |= {"network": "detection", "source": GENERATED, "seed": 0, "engines": BOTH}
    return list(handlers.run(*(values | more).values()))


def problem(update: Sequence[Any]) -> str:
    assert update[1]["visible"]
    assert not update[2]["visible"]
    return str(update[1]["value"])


@pytest.mark.parametrize("name", list(TASKS))
def test_every_task(handlers: "Handlers", name: str) -> None:
    updates = everything(handlers, network=name)
    assert [len(update[0].rows) for update in updates] == [0, 1, 2]
    now, no_problem, results, shown, image, film, words, comparison, _ = updates[-1]
    assert not no_problem["visible"]
    assert results["visible"]
    assert (shown["choices"], shown["value"]) == (list(BOTH), LITERT.name)
    assert image["value"].shape == (512, 512, 3)
    assert image["value"].dtype == np.uint8
    assert not film["visible"]
    assert "<td>" in words
    assert all(name in comparison for name in BOTH)
    assert [row.error for row in now.rows] == [None, None]


def test_the_requested_engine_stays_shown(handlers: "Handlers") -> None:
    assert run(handlers, shown=REFERENCE.name)[3]["value"] == REFERENCE.name
    assert run(handlers, shown="XLA bfloat16")[3]["value"] == LITERT.name  # it is not chosen


def test_the_seed_makes_the_picture(handlers: "Handlers") -> None:
    pictures = [run(handlers, seed=seed)[0].picture for seed in (1, 1, 2)]
    np.testing.assert_array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[2])


def test_another_engine_is_shown(handlers: "Handlers") -> None:
    now = run(handlers)[0]
    image, film, words, _, report = handlers.show(now, REFERENCE.name)
    assert image["visible"]
    assert not film["visible"]
    assert "<td>" in words
    assert "numpy reference runs every operator" in report
    assert len(handlers.show(None, REFERENCE.name)) == 5


def test_an_image_of_any_size(handlers: "Handlers") -> None:
    updates = run(handlers, source=IMAGE, image=IMAGE_OF)
    assert updates[4]["value"].shape == (540, 900, 3)  # 18 times as large: 512 pixels at least


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"network": UPLOAD}, "Choose a .tflite file."),
        ({"source": IMAGE}, "Choose an image"),
        ({"source": VIDEO}, "Choose a video"),
        ({"source": LIVE}, "Start the camera"),
        ({"engines": ()}, "Choose at least one engine"),
    ],
)
def test_a_missing_choice_is_a_hint(
    handlers: "Handlers", choice: dict[str, Any], message: str
) -> None:
    text = problem(run(handlers, **choice))
    assert message in text
    assert "class='hint'" in text


def test_a_damaged_file_is_an_error(handlers: "Handlers", tmp_path: Path) -> None:
    path = tmp_path / "damaged.tflite"
    path.write_bytes(small_classifier()[:3000])
    text = problem(run(handlers, network=UPLOAD, file=str(path)))
    assert "class='error'" in text
    assert "damaged.tflite: " in text
    assert "truncated" in text


def test_an_uploaded_file(handlers: "Handlers", tmp_path: Path) -> None:
    path = tmp_path / "own.tflite"
    path.write_bytes(small_classifier())
    updates = run(handlers, network=UPLOAD, file=str(path))
    assert "probabilities" in updates[6]
    assert "float32 [1, 32]" in updates[6]
    assert updates[7].count("<tr>") == 3


def test_a_frame_of_the_camera(handlers: "Handlers") -> None:
    frame = TASKS["detection"].picture(0)
    no_problem, results, image, film, words = handlers.live(
        frame, "detection", None, REFERENCE.name
    )
    assert not no_problem["visible"]
    assert results["visible"]
    assert image["value"].shape == (512, 512, 3)
    assert not film["visible"]
    assert "ms for this frame" in words
    missing = handlers.live(frame, UPLOAD, None, REFERENCE.name)
    assert "Choose a .tflite file." in missing[0]["value"]
    assert len(handlers.live(None, "detection", None, REFERENCE.name)) == 5


def test_a_video(handlers: "Handlers", tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs PyAV")
    path = tmp_path / "given.mp4"
    images = [TASKS["pose"].picture(seed) for seed in range(3)]
    video.write(path, iter(images))
    updates = run(handlers, network="pose", source=VIDEO, video=str(path))
    image, film = updates[4:6]
    assert not image["visible"]
    assert film["visible"]
    found = list(video.frames(film["value"]))
    assert [frame.shape for frame in found] == [(256, 256, 3)] * 3
    other = handlers.show(updates[0], REFERENCE.name)[1]
    assert other["value"] != film["value"]
    assert len(list(video.frames(other["value"]))) == 3


def test_a_damaged_video_is_an_error(handlers: "Handlers", tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs PyAV")
    path = tmp_path / "bad.mp4"
    path.write_bytes(b"nothing" * 1000)
    assert "bad.mp4 cannot be decoded" in problem(run(handlers, source=VIDEO, video=str(path)))
