#include "patches.h"

#include <cstring>

#include "copy.h"
#include "scratch.h"

namespace kernels {

namespace {

// The image, and the bytes of the pixels around it.
template <class T>
struct Source {
  const Geometry& g;
  const T* image;
  uint8_t pad;
};

// Pixels [first, last) of row i of the window at (top, left).
template <class T>
void copy_row(const Source<T>& source, long top, long left, long i, long first, long last, T* to) {
  const Geometry& g = source.g;
  const long y = top + i * g.dilation_height, count = (last - first) * g.channels;
  if (y < 0 || y >= g.height) {
    memset(to, source.pad, count * sizeof(T));
    return;
  }
  const T* row = source.image + y * g.width * g.channels;
  const long begin = left + first * g.dilation_width, end = left + (last - 1) * g.dilation_width;
  if (g.dilation_width == 1 && begin >= 0 && end < g.width) {
    copy(to, row + begin * g.channels, count);
    return;
  }
  for (long x = begin; x <= end; x += g.dilation_width, to += g.channels) {
    if (x < 0 || x >= g.width) {
      memset(to, source.pad, g.channels * sizeof(T));
    } else {
      copy(to, row + x * g.channels, g.channels);
    }
  }
}

}  // namespace

template <class T>
const T* patches(const Geometry& g, const T* x, long row, long count, long first, long last,
                 long deep, uint8_t pad) {
  static thread_local Scratch<T> scratch;
  const long most_rows = (last - first) / g.window_width + 2;
  T* const all = scratch.of(count * ((last - first) * g.channels + (deep - 1) * most_rows));
  T* to = all;
  long out_x = row % g.out_width, out_y = row / g.out_width % g.out_height;
  const long image = g.height * g.width * g.channels;
  Source<T> source{g, x + row / g.out_width / g.out_height * image, pad};
  for (long n = 0; n < count; ++n) {
    const long top = out_y * g.stride_height - g.pad_top;
    const long left = out_x * g.stride_width - g.pad_left;
    for (long pixel = first; pixel < last;) {
      const long i = pixel / g.window_width, j = pixel % g.window_width;
      const long end = last - pixel < g.window_width - j ? j + last - pixel : g.window_width;
      copy_row(source, top, left, i, j, end, to);
      to += round_up((end - j) * g.channels, deep), pixel += end - j;
    }
    if (++out_x == g.out_width) {
      out_x = 0;
      if (++out_y == g.out_height) out_y = 0, source.image += image;
    }
  }
  return all;
}

template const float* patches(const Geometry&, const float*, long, long, long, long, long, uint8_t);
template const uint8_t* patches(const Geometry&, const uint8_t*, long, long, long, long, long,
                                uint8_t);
template const uint16_t* patches(const Geometry&, const uint16_t*, long, long, long, long, long,
                                 uint8_t);
template const int16_t* patches(const Geometry&, const int16_t*, long, long, long, long, long,
                                uint8_t);

}  // namespace kernels
