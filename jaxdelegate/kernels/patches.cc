#include "patches.h"

#include <cstring>

#include "scratch.h"

namespace kernels {

namespace {

template <int BYTES>
struct Bytes {
  char values[BYTES];
};

// Both ends, which overlap.
template <int BYTES>
inline void copy_ends(float* to, const float* from, long count) {
  Bytes<BYTES> head, tail;
  memcpy(&head, from, BYTES);
  memcpy(&tail, from + count - BYTES / 4, BYTES);
  memcpy(to, &head, BYTES);
  memcpy(to + count - BYTES / 4, &tail, BYTES);
}

// A call of memcpy costs more than a pixel of few channels.
inline void copy(float* to, const float* from, long count) {
  if (count > 32) {
    memcpy(to, from, count * sizeof(float));
  } else if (count >= 16) {
    copy_ends<64>(to, from, count);
  } else if (count >= 8) {
    copy_ends<32>(to, from, count);
  } else if (count >= 4) {
    copy_ends<16>(to, from, count);
  } else {
    for (long i = 0; i < count; ++i) to[i] = from[i];
  }
}

// Where the window of one result lies.
struct Place {
  const float* image;
  long top, left;
};

// Pixels [first, last) of row i of a window.
void copy_row(const Geometry& g, const Place& at, long i, long first, long last, float* to) {
  const long y = at.top + i * g.dilation_height, count = (last - first) * g.channels;
  if (y < 0 || y >= g.height) {
    memset(to, 0, count * sizeof(float));
    return;
  }
  const float* row = at.image + y * g.width * g.channels;
  const long left = at.left + first * g.dilation_width;
  const long right = at.left + (last - 1) * g.dilation_width;
  if (g.dilation_width == 1 && left >= 0 && right < g.width) {
    copy(to, row + left * g.channels, count);
    return;
  }
  for (long x = left; x <= right; x += g.dilation_width, to += g.channels) {
    if (x < 0 || x >= g.width) {
      memset(to, 0, g.channels * sizeof(float));
    } else {
      copy(to, row + x * g.channels, g.channels);
    }
  }
}

}  // namespace

const float* patches(const Geometry& g, const float* x, long row, long count, long first,
                     long last) {
  static thread_local Scratch scratch;
  float* const all = scratch.of(count * (last - first) * g.channels);
  float* to = all;
  long out_x = row % g.out_width, out_y = row / g.out_width % g.out_height;
  const float* image = x + row / g.out_width / g.out_height * g.height * g.width * g.channels;
  for (long n = 0; n < count; ++n) {
    const Place at{image, out_y * g.stride_height - g.pad_top, out_x * g.stride_width - g.pad_left};
    for (long pixel = first; pixel < last;) {
      const long i = pixel / g.window_width, j = pixel % g.window_width;
      const long end = last - pixel < g.window_width - j ? j + last - pixel : g.window_width;
      copy_row(g, at, i, j, end, to);
      to += (end - j) * g.channels, pixel += end - j;
    }
    if (++out_x == g.out_width) {
      out_x = 0;
      if (++out_y == g.out_height) out_y = 0, image += g.height * g.width * g.channels;
    }
  }
  return all;
}

}  // namespace kernels
