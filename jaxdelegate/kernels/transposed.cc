#include "transposed.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "copy.h"
#include "matrix.h"
#include "scratch.h"

namespace kernels {

namespace {

constexpr long kTaskProducts = 100000;   // that justify waking a thread
constexpr long kTasks = 8;               // per thread
constexpr long kBlockBytes = 128 << 10;  // of copied pixels: part of a second-level cache
constexpr long kPanels = 4;              // whose weights stay in the cache for all lines of a task

// The pixels that all phases read along a dimension, for results [0, count) of each.
struct Reach {
  long begin, end;
};

Reach reach_of(long window, long stride, long pad, long count) {
  Reach all{LONG_MAX, LONG_MIN};
  for (long i = 0; i < stride; ++i) {
    const Phase phase = phase_of(window, stride, pad, i);
    all.begin = std::min(all.begin, phase.end - phase.taps), all.end = std::max(all.end, phase.end);
  }
  return {all.begin, all.end + count - 1};
}

// A task computes a band of an image: some adjacent results of each phase. The pixels that they read
// are copied first, with the zeros around the image.
template <class E>
struct Tiling {
  const Transposed<E>& work;
  const InstructionSet& set;
  Reach rows, columns;  // of an image
  long bands, band;     // in an image, and results of a phase in it

  long width() const { return columns.end - columns.begin; }
};

template <class E>
Tiling<E> tiling_of(const Transposed<E>& work, const InstructionSet& set, long threads) {
  const Geometry& g = work.geometry;
  const long height = ceil_div(g.out_height, g.stride_height);
  const long width = ceil_div(g.out_width, g.stride_width);
  Tiling<E> t{
      .work = work,
      .set = set,
      .rows = reach_of(g.window_height, g.stride_height, g.pad_top, height),
      .columns = reach_of(g.window_width, g.stride_width, g.pad_left, width),
  };
  const double products = 1.0 * g.batch * height * width * g.channels * g.window_height *
                          g.window_width * g.out_channels;
  const long most = threads < 2 ? 1 : threads * kTasks;
  const long goal = std::clamp(static_cast<long>(products / kTaskProducts), 1L, most);
  const long fitting = kBlockBytes / (t.width() * g.channels * sizeof(typename E::Value));
  t.band = std::min(ceil_div(height, ceil_div(goal, g.batch)), std::max(fitting, 1L));
  t.bands = ceil_div(height, t.band);
  return t;
}

// Copies the pixels of a row, with those around the image.
template <class E>
void copy_row(const Tiling<E>& t, const typename E::Value* image, long y, typename E::Value* to) {
  const Geometry& g = t.work.geometry;
  const int pad = padding(t.work.epilogue);
  const long begin = std::max(t.columns.begin, 0L), end = std::min(t.columns.end, g.width);
  if (y < 0 || y >= g.height || begin >= end) {
    memset(to, pad, t.width() * g.channels * sizeof *to);
    return;
  }
  const long before = (begin - t.columns.begin) * g.channels, count = (end - begin) * g.channels;
  memset(to, pad, before * sizeof *to);
  copy(to + before, image + (y * g.width + begin) * g.channels, count);
  memset(to + before + count, pad, (t.columns.end - end) * g.channels * sizeof *to);
}

// The weights of a pair of phases. The bias of integers depends on the taps, so each has its own.
template <class E>
Matrix<E> matrix_of(const Tiling<E>& t, long phase, const typename E::Weight* weights) {
  const Transposed<E>& work = t.work;
  const Geometry& g = work.geometry;
  const long skipped = E::kFillsBias ? phase * columns_of_matrix<E>(g) : 0;
  Matrix<E> matrix{
      .weights = weights,
      .depth = depth_of_phase<E>(g, phase),
      .columns = g.out_channels,
      .bias = work.bias + skipped,
      .y = work.y,
      .epilogue = work.epilogue,
      .finish = work.finish.is_any() ? &work.finish : nullptr,
      .stride = g.stride_width * g.out_channels,
  };
  skip(matrix.epilogue, skipped);
  return matrix;
}

// Results [begin, end) of each phase, along the rows of an image, and the pixels that they read.
template <class E>
struct Band {
  long image, begin, end;
  const typename E::Value* pixels;
};

template <class E>
void multiply_phase(const Tiling<E>& t, const Band<E>& band, Matrix<E> matrix, long phase) {
  const Geometry& g = t.work.geometry;
  const Phase rows = row_phase(g, phase), columns = column_phase(g, phase);
  const long top = phase / g.stride_width, left = phase % g.stride_width;
  const long size = t.width() * g.channels, panels = panels_of_matrix(g);
  const long end = std::min(band.end, ceil_div(g.out_height - top, g.stride_height));
  if (left >= g.out_width) return;
  const auto* first = band.pixels + (rows.end - rows.taps - t.rows.begin) * size +
                      (columns.end - columns.taps - t.columns.begin) * g.channels;
  Block<E> block{
      .row = 0,
      .count = ceil_div(g.out_width - left, g.stride_width),
      .from = 0,
      .to = matrix.depth,
      .a = nullptr,
      .stride = g.channels,
      .runs = rows.taps,
      .run_stride = size,
      .length = columns.taps * g.channels,
  };
  for (long panel = 0; panel < panels; panel += kPanels) {
    for (long i = band.begin; i < end; ++i) {
      const long y = band.image * g.out_height + i * g.stride_height + top;
      matrix.offset = (y * g.out_width + left) * g.out_channels;
      block.a = first + (i - band.begin) * size;
      multiply(t.set, matrix, block, panel, std::min(panels, panel + kPanels));
    }
  }
}

template <class E>
void run_task(const void* tiling, long index) {
  using Value = typename E::Value;
  static thread_local Scratch<Value> scratch;
  const Tiling<E>& t = *static_cast<const Tiling<E>*>(tiling);
  const Geometry& g = t.work.geometry;
  const long image = index / t.bands, begin = index % t.bands * t.band;
  const long size = t.width() * g.channels, height = ceil_div(g.out_height, g.stride_height);
  const long rows = t.rows.end - t.rows.begin - height + t.band;
  Value* const pixels = scratch.of(rows * size + kPanel);  // runs of integers are read to whole steps
  const Value* const x = t.work.x + image * g.height * g.width * g.channels;
  for (long i = 0; i < rows; ++i) copy_row(t, x, begin + t.rows.begin + i, pixels + i * size);
  const Band<E> band{.image = image, .begin = begin, .end = begin + t.band, .pixels = pixels};
  const auto* weights = t.work.weights;
  for (long phase = 0; phase < phases(g); ++phase) {
    multiply_phase(t, band, matrix_of(t, phase, weights), phase);
    weights += panels_of_matrix(g) * kPanel * depth_of_phase<E>(g, phase);
  }
}

}  // namespace

template <class E>
void run(const Transposed<E>& work, const InstructionSet& set, const ThreadPool& pool) {
  const Tiling<E> tiling = tiling_of(work, set, pool.size());
  pool.loop(work.geometry.batch * tiling.bands, run_task<E>, &tiling);
}

template void run(const Transposed<Float32>&, const InstructionSet&, const ThreadPool&);
template void run(const Transposed<Int8>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
