"""Videos: frames that are read, files that are written, damaged files."""

import sys
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.errors import OptionError
from web_demo import video
from web_demo.video import VideoError

av = pytest.importorskip("av", reason="needs PyAV")


def film(path: Path, count: int, *, rate: int = 10, size: tuple[int, int] = (48, 64)) -> Path:
    """A video whose frames become brighter, by 2 of 255 each."""
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "1"})
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        for i in range(count):
            image = np.full((*size, 3), 2 * i % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return path


def test_ten_seconds_of_ten_frames_each(tmp_path: Path) -> None:
    found = list(video.frames(film(tmp_path / "slow.mp4", 120)))
    assert len(found) == 100
    assert found[0].shape == (48, 64, 3)
    assert found[0].dtype == np.uint8
    levels = [image.mean() for image in found]
    np.testing.assert_allclose(levels, 2 * np.arange(100), atol=3)


def test_frames_in_between_are_dropped(tmp_path: Path) -> None:
    levels = [image.mean() for image in video.frames(film(tmp_path / "x.mp4", 90, rate=30))]
    np.testing.assert_allclose(levels, 2 * 3 * np.arange(30), atol=3)


def test_large_frames_are_reduced(tmp_path: Path) -> None:
    path = film(tmp_path / "large.mp4", 2, size=(1080, 1918))
    assert video.first_frame(path).shape == (360, 640, 3)


def test_a_written_video_can_be_read(tmp_path: Path) -> None:
    images = [np.full((32, 48, 3), 20 * i, np.uint8) for i in range(12)]
    path = tmp_path / "written.mp4"
    assert video.write(path, iter(images)) == 12
    found = list(video.frames(path))
    assert len(found) == 12
    for got, want in zip(found, images, strict=True):
        assert got.shape == want.shape
        assert abs(got.mean() - want.mean()) < 4


@pytest.mark.parametrize("content", [b"no video at all" * 100, b""])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.mp4"
    path.write_bytes(content)
    with pytest.raises(VideoError, match=r"^bad.mp4 cannot be decoded: ") as error:
        video.first_frame(path)
    assert str(tmp_path) not in str(error.value)


def test_sound_alone_is_not_a_video(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(VideoError, match=r"^sound.wav holds no video$"):
        video.first_frame(path)


def test_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(OptionError, match=r"pip install 'av>="):
        video.first_frame("x.mp4")
