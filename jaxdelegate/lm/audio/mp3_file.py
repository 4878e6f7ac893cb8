"""MP3 files, of which all frames are decoded, as in LiteRT-LM.

miniaudio, by which LiteRT-LM decodes, plays the frame of an encoder's tag as silence, and the
silence of encoder and decoder at both ends. mpg123, by which soundfile decodes, leaves out the
tag's frame and what the tag says, and in any case the decoder's silence.

Source: ISO/IEC 11172-3 and 13818-3 (headers of frames), Xing's and LAME's tags as in mpg123.
"""

import numpy as np

_DELAY = 529  # samples of mpg123's silence, if there is a tag
_TAGS = (b"Xing", b"Info")
_HEADER, _CHECKSUM, _TOC = 4, 2, 100  # bytes
_KILOBITS = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = (44100, 48000, 32000)


def with_all_frames(data: bytes) -> bytes | None:
    """The file whose frame of a tag is silence after another tag; None: it has no tag.

    The new tag says only how many frames and bytes follow.
    """
    begin = _after_id3(data)
    length, tag = _frame(data[begin : begin + _HEADER])
    frame = bytearray(data[begin : begin + length])
    fields = int.from_bytes(frame[tag + 4 : tag + 8], "big")
    if frame[tag : tag + 4] not in _TAGS or not fields & 1:
        return None
    silence = frame[:tag] + bytes(length - tag)
    _add(frame, tag + 8, 1)
    end = tag + 12
    if fields & 2:
        _add(frame, end, length)
        end += 4
    end += (_TOC if fields & 4 else 0) + (4 if fields & 8 else 0)
    frame[end:] = bytes(max(length - end, 0))
    return data[:begin] + frame + silence + data[begin + length :]


def as_miniaudio(values: np.ndarray, *, has_all_frames: bool) -> np.ndarray:
    """Decoded samples [n, channels] as miniaudio's, which have 16 bits.

    `has_all_frames`: those of a file of `with_all_frames`.
    """
    silence = np.zeros((_DELAY if has_all_frames else 0, values.shape[1]), np.float32)
    whole = np.rint(np.concatenate([silence, values]) * 32768).clip(-32768, 32767)
    found: np.ndarray = whole.astype(np.float32) / np.float32(32768)
    return found


def _after_id3(data: bytes) -> int:
    if not data.startswith(b"ID3") or len(data) < 10:
        return 0
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 127
    return 10 + size


def _frame(header: bytes) -> tuple[int, int]:
    """The bytes of a frame, and where its tag would begin; zeros: it is none of layer III."""
    bits = int.from_bytes(header, "big")
    version, kind, rate = bits >> 19 & 3, bits >> 12 & 15, bits >> 10 & 3
    if bits >> 21 != 0x7FF or bits >> 17 & 3 != 1 or version == 1 or kind in (0, 15) or rate == 3:
        return 0, 0
    is_first, is_mono = version == 3, bits >> 6 & 3 == 3
    side = {(True, True): 17, (True, False): 32, (False, True): 9, (False, False): 17}
    rate = _RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    length = (144 if is_first else 72) * 1000 * _KILOBITS[is_first][kind] // rate + (bits >> 9 & 1)
    checked = 0 if bits >> 16 & 1 else _CHECKSUM
    return length, _HEADER + checked + side[is_first, is_mono]


def _add(frame: bytearray, at: int, more: int) -> None:
    count = int.from_bytes(frame[at : at + 4], "big") + more
    frame[at : at + 4] = min(count, 0xFFFFFFFF).to_bytes(4, "big")
