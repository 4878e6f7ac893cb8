import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxdelegate.evaluation.files import DataError
from jaxdelegate.evaluation.images import Preprocessing, central_square, decode, resize_bilinear
from jaxdelegate.op_lowering.options import ResizeBilinearOptions
from jaxdelegate.op_lowering.resize.reference import resize_bilinear as reference_resize

FLOAT, BYTE, SIGNED = np.dtype(np.float32), np.dtype(np.uint8), np.dtype(np.int8)


def noise(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    return rng.integers(0, 256, (height, width, 3), np.uint8)


def saved(folder: Path, image: Image.Image, name: str = "x.png", **how: object) -> Path:
    image.save(folder / name, **how)
    return folder / name


@pytest.mark.parametrize(
    ("source", "target"),
    [((7, 9), (4, 4)), ((5, 5), (11, 8)), ((1, 1), (3, 3)), ((64, 48), (32, 32)), ((3, 8), (3, 8))],
)
def test_resizing_is_the_operator(
    rng: np.random.Generator, source: tuple[int, int], target: tuple[int, int]
) -> None:
    image = noise(rng, *source)
    (want,) = reference_resize(
        ResizeBilinearOptions(), (), (FLOAT_SPEC,), image[None].astype(np.float32), np.array(target)
    )
    np.testing.assert_array_equal(resize_bilinear(image, *target), want[0])


class FLOAT_SPEC:  # noqa: N801 (in place of a TensorSpec: the kernel reads only its dtype)
    dtype = FLOAT


@pytest.mark.parametrize(
    ("size", "side", "first"),
    [  # side = round(0.875 * smaller), offsets = round((n - side) / 2), halves away from zero
        ((16, 16), 14, (1, 1)),
        ((500, 375), 328, (86, 24)),  # 0.875 * 375 = 328.125; (375 - 328) / 2 = 23.5 -> 24
        ((375, 500), 328, (24, 86)),
        ((4, 4), 4, (0, 0)),  # 3.5 -> 4
        ((1, 9), 1, (0, 4)),
    ],
)
def test_the_central_square(size: tuple[int, int], side: int, first: tuple[int, int]) -> None:
    image = np.zeros((*size, 3), np.int32)
    image[..., 0], image[..., 1] = np.indices(size)
    square = central_square(image, 0.875)
    assert square.shape == (side, side, 3)
    assert square[0, 0, :2].tolist() == list(first)


def test_normalization_by_input_type(tmp_path: Path) -> None:
    pixels = np.array([[[0, 127, 128], [255, 1, 254]]], np.uint8)
    path = saved(tmp_path, Image.fromarray(pixels))
    as_float = Preprocessing(1, 2, FLOAT)(path)
    np.testing.assert_allclose(as_float, (pixels.astype(np.float64) - 127.5) / 127.5, rtol=1e-6)
    assert as_float.dtype == np.float32
    assert Preprocessing(1, 2, BYTE)(path).tolist() == pixels.tolist()
    assert Preprocessing(1, 2, SIGNED)(path).tolist() == (pixels.astype(int) - 128).tolist()


def test_integers_are_truncated_not_rounded(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(np.array([[[0] * 3, [3] * 3]], np.uint8)))
    # halfway between 0 and 3 is 1.5; of x - 128 that is -126.5
    assert Preprocessing(1, 4, BYTE)(path)[0, :, 0].tolist() == [0, 1, 3, 3]
    assert Preprocessing(1, 4, SIGNED)(path)[0, :, 0].tolist() == [-128, -126, -125, -125]


def test_classification_crops_before_it_resizes(tmp_path: Path, rng: np.random.Generator) -> None:
    pixels = noise(rng, 16, 24)
    path = saved(tmp_path, Image.fromarray(pixels))
    got = Preprocessing(14, 14, BYTE, 0.875)(path)
    np.testing.assert_array_equal(got, pixels[1:15, 5:19])


def test_jpeg_is_decoded_by_content_whatever_the_name(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    image = Image.fromarray(noise(rng, 20, 30))
    for name, kind in (("a.JPEG", "JPEG"), ("b.jpg", "PNG"), ("c.png", "JPEG")):
        path = saved(tmp_path, image, name, format=kind)
        with Image.open(path) as again:
            np.testing.assert_array_equal(decode(path), np.asarray(again))


def test_gray_is_repeated(tmp_path: Path, rng: np.random.Generator) -> None:
    gray = noise(rng, 8, 8)[..., 0]
    path = saved(tmp_path, Image.fromarray(gray))
    np.testing.assert_array_equal(decode(path), np.repeat(gray[..., None], 3, axis=2))


def test_16_bit_gray_keeps_its_upper_byte(tmp_path: Path) -> None:
    deep = np.array([[0, 255, 256, 65535]], np.uint16)
    path = saved(tmp_path, Image.fromarray(deep))
    assert decode(path)[0, :, 1].tolist() == [0, 0, 1, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1"])
def test_transparency_and_palettes_become_rgb(
    tmp_path: Path, rng: np.random.Generator, mode: str
) -> None:
    image = Image.fromarray(noise(rng, 8, 8)).convert("RGB").convert("L" if mode == "LA" else mode)
    image = image.convert(mode)
    how = {"transparency": bytes(range(256))} if mode == "P" else {}
    got = decode(saved(tmp_path, image, **how))
    want = image.convert("RGBA").convert("RGB") if mode == "P" else image.convert("RGB")
    np.testing.assert_array_equal(got, np.asarray(want))


INKS = (40, 0, 200, 30)


def cmyk_jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("CMYK", (16, 16), INKS).save(buffer, "JPEG", quality=100)
    return buffer.getvalue()


def without_adobe_marker(jpeg: bytes) -> bytes:
    at = jpeg.index(b"\xff\xee")
    length = int.from_bytes(jpeg[at + 2 : at + 4], "big")
    return jpeg[:at] + jpeg[at + 2 + length :]


def test_cmyk_with_and_without_adobes_inversion(tmp_path: Path) -> None:
    """tensorflow/core/lib/jpeg: an Adobe file contains 255 - ink."""
    adobe, plain = tmp_path / "a.jpg", tmp_path / "b.jpg"
    adobe.write_bytes(cmyk_jpeg())
    plain.write_bytes(without_adobe_marker(cmyk_jpeg()))
    key = INKS[3]
    want = [(255 - ink) * (255 - key) // 255 for ink in INKS[:3]]
    assert np.abs(decode(adobe)[4, 4].astype(int) - want).max() <= 1  # JPEG's own rounding
    want = [ink * key // 255 for ink in INKS[:3]]
    assert np.abs(decode(plain)[4, 4].astype(int) - want).max() <= 1


def test_raw_images_are_not_preprocessed(tmp_path: Path, rng: np.random.Generator) -> None:
    pixels = noise(rng, 4, 6)
    path = tmp_path / "x.rgb8"
    path.write_bytes(pixels.tobytes())
    np.testing.assert_array_equal(Preprocessing(4, 6, BYTE, 0.875)(path), pixels)
    with pytest.raises(DataError, match="a raw image has 75 bytes, got 72"):
        Preprocessing(5, 5, BYTE)(path)


def jpeg_of(rng: np.random.Generator) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(rng, 24, 24)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot identify image file"),
        (b"no image", "cannot identify image file"),
        (b"GIF89a", "cannot identify image file"),
        (None, "No such file"),
    ],
)
def test_files_that_are_not_images(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        decode(path)
    assert "\n" not in str(caught.value)


def test_a_truncated_jpeg_is_damaged(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(jpeg_of(rng)[:-200])
    with pytest.raises(DataError, match="truncated"):
        decode(path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_damage_of_any_kind_is_a_data_error(
    tmp_path: Path, rng: np.random.Generator, kind: str
) -> None:
    buffer = io.BytesIO()
    Image.fromarray(noise(rng, 24, 24)).quantize(16).convert("RGB" if kind == "JPEG" else "P").save(
        buffer, kind
    )
    path, whole = tmp_path / "x", buffer.getvalue()
    outcomes: set[object] = set()
    for _ in range(300):
        damaged = bytearray(whole[: rng.integers(len(whole) // 2, len(whole) + 1)])
        for at in rng.integers(0, len(damaged), rng.integers(1, 6)):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            outcomes.add(decode(path).shape[2])
        except DataError as error:
            outcomes.add(f"lines: {len(str(error).splitlines())}")
    assert outcomes <= {3, "lines: 1"}
    assert "lines: 1" in outcomes
