"""Reads and writes videos with PyAV, which decodes in this process to numpy arrays."""

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.optional import optional_module

MAX_SECONDS = 10.0
FRAMES_PER_SECOND = 10  # other frames are dropped
MAX_SIDE = 640  # pixels; larger frames are reduced


class VideoError(JaxDelegateError, ValueError):
    """A video cannot be decoded."""


def frames(path: str | os.PathLike[str]) -> Iterator[np.ndarray]:
    """The first 10 seconds of a video that FFmpeg can read, 10 frames a second.

    Frames are uint8 [h, w, 3]; h and w are even and at most 640.
    """
    av = optional_module("av", "web")
    try:
        with av.open(os.fspath(path)) as container:
            if not container.streams.video:
                raise VideoError(f"{os.path.basename(path)} holds no video")
            for frame in _sampled(container.decode(video=0)):
                yield _shrunk(frame)
    except av.error.FFmpegError as error:
        name = os.path.basename(path)
        raise VideoError(f"{name} cannot be decoded: {error.strerror or error}") from error


def first_frame(path: str | os.PathLike[str]) -> np.ndarray:
    """The first of `frames`, with its errors; a video without frames is a VideoError."""
    for frame in frames(path):
        return frame
    raise VideoError(f"{os.path.basename(path)} holds no frames")


def write(path: str | os.PathLike[str], images: Iterable[np.ndarray]) -> int:
    """Write an MP4 file (H.264) that browsers play, 10 frames a second; returns their number.

    Images are uint8 [h, w, 3], all of one shape; h and w are even.
    """
    av = optional_module("av", "web")
    images = iter(images)
    first = next(images)
    count = 0
    with av.open(os.fspath(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAMES_PER_SECOND)
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt = "yuv420p"
        for count, image in enumerate(itertools.chain([first], images), start=1):  # noqa: B007
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return count


def _sampled(decoded: Iterable[Any]) -> Iterator[Any]:
    start, due = None, 0.0
    for position, frame in enumerate(decoded):
        at = position / 30 if frame.time is None else frame.time
        start = at if start is None else start
        if at - start >= MAX_SECONDS:
            return
        if at - start > due - 1e-3:  # the times are rounded
            due += 1 / FRAMES_PER_SECOND
            yield frame


def _shrunk(frame: Any) -> np.ndarray:
    scale = min(1.0, MAX_SIDE / max(frame.width, frame.height))
    width, height = (max(2, int(n * scale) // 2 * 2) for n in (frame.width, frame.height))
    image: np.ndarray = frame.to_ndarray(format="rgb24", width=width, height=height)
    return image
