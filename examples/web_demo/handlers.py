"""Event handlers of the page. They take and return values of widgets."""

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr
import numpy as np

from jaxdelegate.errors import JaxDelegateError
from sample_tasks.tasks import TASKS
from web_demo import fragments, uploads, video
from web_demo.engines import ENGINES, Engines
from web_demo.showing import (
    Showing,
    Subject,
    enlarged,
    showings,
    task_subject,
    upload_subject,
)

UPLOAD = ".tflite file"
GENERATED, IMAGE, VIDEO, LIVE = SOURCES = ("Generated", "Image", "Video", "Live camera")
SHOWN_FIRST = "XLA float32"


class MissingError(Exception):
    """The user must choose something first; the message says what."""


_NO_FILE = "Choose a .tflite file."
_NO_PICTURE = {
    IMAGE: "Choose an image, take one with the camera, or paste one.",
    VIDEO: "Choose a video. The first 10 seconds are used, 10 frames per second.",
    LIVE: "Start the camera. The selected engine runs each frame.",
}
_ERRORS = (JaxDelegateError, ValueError, RuntimeError)  # engines'; others are bugs
_SHOW_RESULTS = (gr.update(visible=False), gr.update(visible=True))  # and hide the problem
_NO_FILM = gr.update(value=None, visible=False)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The values of the page's inputs, in the page's order."""

    network: str
    file: str | None
    source: str
    seed: float | None
    image: np.ndarray | None
    video: str | None
    camera: np.ndarray | None
    engines: Sequence[str]
    shown: str | None


class Handlers:
    """All sessions share the opened networks."""

    def __init__(self, folder: str) -> None:
        self._engines = Engines()
        self._folder = folder

    def run(self, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Run every chosen engine; `values` are a Choice's.

        Yields after each engine the showing, and updates: the problem, the results' visibility, the
        shown engine, image, video, the words, the comparison, the report.
        """
        choice = Choice(*values)
        try:
            first = self._first(choice)
            for now in showings(self._engines, first):
                shown = _shown(now, choice.shown)
                radio = gr.update(choices=[engine.name for engine in now.chosen], value=shown)
                yield now, *_SHOW_RESULTS, radio, *_view(now, shown)
            if first.video is not None:
                film = self._film(now, shown)
                yield now, *_SHOW_RESULTS, gr.skip(), *film, *[gr.skip()] * 3
        except MissingError as hint:
            yield _problem(fragments.hint(str(hint)))
        except _ERRORS as error:
            yield _problem(fragments.error(str(error)))

    def show(self, now: Showing | None, name: str) -> tuple[Any, ...]:
        """Show another engine: image, video, the words, the comparison, the report."""
        if now is None:
            return tuple([gr.skip()] * 5)
        image, film, *others = _view(now, name)
        return *((image, film) if now.video is None else self._film(now, name)), *others

    def live(
        self, camera: np.ndarray | None, network: str, file: str | None, shown: str
    ) -> tuple[Any, ...]:
        """Run one frame of the camera in the shown engine.

        Returns updates: the problem, the results' visibility, image, video, the words.
        """
        if camera is None:
            return tuple([gr.skip()] * 5)
        engine = ENGINES[shown]
        try:
            subject = self._subject(network, file, 0)
            opened = self._engines.open(subject.network(engine.is_quantized), engine)
            run = opened.run(subject.inputs(camera), repeats=0)
        except (MissingError, *_ERRORS) as error:
            return *_problem(fragments.error(str(error)))[1:3], *[gr.skip()] * 3
        image = gr.update(value=subject.draw(enlarged(camera), run.outputs), visible=True)
        speed = fragments.message(f"{shown}: {run.milliseconds:.1f} ms for this frame")
        return *_SHOW_RESULTS, image, _NO_FILM, speed + subject.words(run.outputs)

    def _first(self, choice: Choice) -> Showing:
        subject = self._subject(choice.network, choice.file, int(choice.seed or 0))
        chosen = tuple(ENGINES[name] for name in ENGINES if name in choice.engines)
        if not chosen:
            raise MissingError("Choose at least one engine.")
        film = choice.video if choice.source == VIDEO else None
        return Showing(subject, _picture(choice), chosen, video=film)

    def _subject(self, network: str, file: str | None, seed: int) -> Subject:
        if network != UPLOAD:
            return task_subject(TASKS[network])
        if file is None:
            raise MissingError(_NO_FILE)
        return upload_subject(uploads.read(file, self._engines), seed)

    def _film(self, now: Showing, name: str) -> tuple[Any, Any]:
        """Image and video, each frame annotated if the engine can run the network."""
        row, engine, subject = now.row(name), ENGINES[name], now.subject
        if now.video is None or row is None or row.error is not None:
            return _view(now, name)[:2]
        opened = self._engines.open(subject.network(engine.is_quantized), engine)

        def annotated(frame: np.ndarray) -> np.ndarray:
            return subject.draw(frame, opened.run(subject.inputs(frame), repeats=0).outputs)

        handle, path = tempfile.mkstemp(suffix=".mp4", dir=self._folder)
        os.close(handle)
        video.write(path, map(annotated, video.frames(now.video)))
        return gr.update(visible=False), gr.update(value=path, visible=True)


def _picture(choice: Choice) -> np.ndarray:
    chosen = {IMAGE: choice.image, VIDEO: choice.video, LIVE: choice.camera}.get(choice.source)
    if choice.source == GENERATED:
        task = TASKS.get(choice.network) or next(iter(TASKS.values()))
        return task.picture(int(choice.seed or 0))
    if chosen is None:
        raise MissingError(_NO_PICTURE[choice.source])
    return video.first_frame(chosen) if isinstance(chosen, str) else chosen


def _shown(now: Showing, requested: str | None) -> str:
    names = [engine.name for engine in now.chosen]
    return next((name for name in (requested, SHOWN_FIRST) if name in names), names[-1])


def _view(now: Showing, name: str) -> tuple[Any, ...]:
    """Image, video, the words, the comparison, the report."""
    image = gr.update(value=now.image(name), visible=True)
    return image, _NO_FILM, now.words(name), now.comparison(), now.report(name)


def _problem(text: str) -> tuple[Any, ...]:
    message = gr.update(value=text, visible=True)
    return None, message, gr.update(visible=False), *[gr.skip()] * 6
