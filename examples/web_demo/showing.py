"""What the page shows for one picture and one network: the drawing, the texts and the tables."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxdelegate.evaluation.images import resize_bilinear
from sample_tasks.drawing import draw
from sample_tasks.tasks import Task
from web_demo import fragments
from web_demo.comparison import Row, compare
from web_demo.engines import REFERENCE, Engine, Engines
from web_demo.uploads import Upload

_MIN_HEIGHT = 512


@dataclasses.dataclass(frozen=True)
class Subject:
    network: Callable[[bool], bytes]  # the .tflite file; True: the int8 one
    # An array for each input, from an image, uint8 [h, w, 3].
    inputs: Callable[[np.ndarray], list[np.ndarray]]
    # The image with what the outputs mean.
    draw: Callable[[np.ndarray, Sequence[np.ndarray]], np.ndarray]
    words: Callable[[Sequence[np.ndarray]], str]  # what the outputs mean, as HTML


def task_subject(task: Task) -> Subject:
    return Subject(
        network=task.network,
        inputs=lambda image: [task.inputs(image)],
        draw=lambda image, outputs: draw(image, task.decode(outputs)),
        words=lambda outputs: fragments.annotation(task.decode(outputs)),
    )


def upload_subject(upload: Upload, seed: int) -> Subject:
    """A .tflite file of the user. Objects of a detector are drawn; other outputs are a table."""

    def picture(image: np.ndarray, outputs: Sequence[np.ndarray]) -> np.ndarray:
        annotation = upload.decode(outputs)
        return image if annotation is None else draw(image, annotation)

    def words(outputs: Sequence[np.ndarray]) -> str:
        annotation = upload.decode(outputs)
        objects = "" if annotation is None else fragments.annotation(annotation)
        return objects + fragments.outputs(upload.table(outputs), upload.inputs_in_words())

    return Subject(
        network=lambda _is_quantized: upload.content,
        inputs=lambda image: upload.arrays(image, seed),
        draw=picture,
        words=words,
    )


@dataclasses.dataclass(frozen=True)
class Showing:
    """The rows so far, and what the page shows for each."""

    subject: Subject
    picture: np.ndarray  # uint8 [h, w, 3]
    chosen: tuple[Engine, ...]
    rows: tuple[Row, ...] = ()
    video: str | None = None  # the file whose first frame is the picture

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.engine.name == name), None)

    def image(self, name: str) -> np.ndarray:
        """The annotated picture; unchanged if it failed."""
        row, large = self.row(name), enlarged(self.picture)
        if row is None or row.error is not None:
            return large
        return self.subject.draw(large, row.outputs)

    def words(self, name: str) -> str:
        row = self.row(name)
        if row is None:
            return fragments.message(f"{name} is running ...")
        if row.error is not None:
            return fragments.error(f"{name}: {row.error}")
        return self.subject.words(row.outputs)

    def comparison(self) -> str:
        waiting = [engine.name for engine in self.chosen[len(self.rows) :]]
        return fragments.comparison(self.rows, waiting)

    def report(self, name: str) -> str:
        row = self.row(name)
        return "" if row is None or row.error is not None else fragments.report(row.report)


def enlarged(image: np.ndarray) -> np.ndarray:
    """Enlarge small images to at least 512 pixels, so that lines and letters on them are sharp."""
    factor = -(-_MIN_HEIGHT // image.shape[0])
    if factor <= 1:
        return image
    height, width = (n * factor for n in image.shape[:2])
    return resize_bilinear(image, height, width).round().astype(np.uint8)


def showings(engines: Engines, first: Showing) -> Iterator[Showing]:
    """Yield `first`, then a copy with one more row at a time."""
    yield first
    inputs = first.subject.inputs(first.picture)
    is_compared = REFERENCE in first.chosen
    rows = compare(engines, first.chosen, first.subject.network, inputs, is_compared=is_compared)
    now = first
    for row in rows:
        now = dataclasses.replace(now, rows=(*now.rows, row))
        yield now
