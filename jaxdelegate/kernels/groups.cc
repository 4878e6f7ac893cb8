#include "groups.h"

#include <algorithm>
#include <cstring>

#include "copy.h"
#include "matrix.h"
#include "scratch.h"

namespace kernels {

namespace {

constexpr long kTaskProducts = 100000;   // that justify waking a thread
constexpr long kTasks = 8;               // per thread
constexpr long kBlockBytes = 128 << 10;  // of copied pixels: part of a second-level cache
constexpr long kLine = 112;              // pixels of a line, if windows have one pixel
constexpr long kFactorBytes = 4;         // of an operand of a product's step
constexpr long kPanels = 4;              // whose weights stay in the cache for all lines of a block

// A matrix product for each group or pack of groups, or for all channels. Its rows are multiplied by
// lines: adjacent results whose windows have equal distances. The pixels of a group that the windows
// of some lines read are copied first, including padding.
template <class E>
struct Tiling {
  const Geometry& geometry;
  const InstructionSet& set;
  const typename E::Value* x;
  Matrix<E> matrix;  // the first one
  bool is_direct;    // windows have one pixel, which is not copied
  long results, line, lines;  // in total, per line, and the number of lines
  long width, pixel;          // of copied pixels: pixels per row, values per pixel
  long lines_of_block;
  long lines_of_task, line_tasks, matrices_of_task, matrix_tasks;
};

long channel_of(const Geometry& g, long matrix) { return g.channels / matrices(g) * matrix; }

long rows_of_lines(const Geometry& g, long lines) {
  return (lines - 1) * g.stride_height + (g.window_height - 1) * g.dilation_height + 1;
}

template <class E>
void divide(Tiling<E>& p, long threads) {
  const Geometry& g = p.geometry;
  const double products = 1.0 * p.results * p.matrix.depth * g.out_channels;
  const long most = threads < 2 ? 1 : threads * kTasks;
  const long goal = std::clamp(static_cast<long>(products / kTaskProducts), 1L, most);
  p.matrices_of_task = ceil_div(matrices(g), std::min(goal, matrices(g)));
  p.matrix_tasks = ceil_div(matrices(g), p.matrices_of_task);
  p.lines_of_task = ceil_div(p.lines, std::min(p.lines, ceil_div(goal, p.matrix_tasks)));
  p.line_tasks = ceil_div(p.lines, p.lines_of_task);
}

template <class E>
Tiling<E> tiling_of(const Product<E>& product, const InstructionSet& set, long threads) {
  const Geometry& g = product.geometry;
  const long depth = g.window_height * run_depth<E>(g), depth_of_group = g.channels / g.groups;
  const Matrix<E> matrix{
      .weights = product.weights,
      .depth = depth,
      .columns = g.out_channels / matrices(g),
      .bias = product.bias,
      .y = product.y,
      .epilogue = product.epilogue,
      .finish = product.finish.is_any() ? &product.finish : nullptr,
      .stride = g.out_channels,
  };
  Tiling<E> p{.geometry = g, .set = set, .x = product.x, .matrix = matrix};
  p.results = g.batch * g.out_height * g.out_width;
  p.is_direct = g.packed_groups == 1 && reads_pixels(g) && depth == run_length(g);
  p.line = p.is_direct ? std::min(p.results, kLine) : g.out_width;
  p.lines = ceil_div(p.results, p.line);
  p.width = (g.out_width - 1) * g.stride_width + g.window_width;
  p.pixel = g.packed_groups == 1 ? depth_of_group : depth_of_group * kPanel;
  const long row_bytes = p.width * p.pixel * sizeof(typename E::Value);
  p.lines_of_block = std::clamp(kBlockBytes / row_bytes / g.stride_height, 1L, g.out_height);
  divide(p, threads);
  return p;
}

template <class E>
Matrix<E> matrix_of(const Tiling<E>& p, long index) {
  Matrix<E> matrix = p.matrix;
  const long columns = columns_of_matrix<E>(p.geometry);
  matrix.weights += index * panels_of_matrix(p.geometry) * kPanel * matrix.depth;
  matrix.bias += index * columns, matrix.offset = index * matrix.columns;
  skip(matrix.epilogue, index * columns);
  return matrix;
}

// Copies adjacent pixels; values of packed groups are repeated for each column of their group.
template <class E>
void copy_pixels(const Tiling<E>& p, const typename E::Value* from, long count,
                 typename E::Value* to) {
  const Geometry& g = p.geometry;
  if (g.packed_groups > 1) {
    constexpr long kValues = kFactorBytes / sizeof *to;
    p.set.int8->broadcast_operands({
        .x = reinterpret_cast<const int32_t*>(from),
        .stride = g.channels / kValues,
        .pixels = count,
        .groups = g.packed_groups,
        .depth = g.channels / g.groups / kValues,
        .columns = g.out_channels / g.groups,
        .y = reinterpret_cast<int32_t*>(to),
    });
    return;
  }
  if (p.pixel == g.channels) return copy(to, from, count * p.pixel);
  for (long i = 0; i < count; ++i, from += g.channels, to += p.pixel) copy(to, from, p.pixel);
}

template <class E>
void copy_row(const Tiling<E>& p, const typename E::Value* row, typename E::Value* to) {
  const Geometry& g = p.geometry;
  const int pad = padding(p.matrix.epilogue);
  const long left = std::min(g.pad_left, p.width), inside = std::min(p.width - left, g.width);
  const long size = p.pixel * sizeof *to;
  memset(to, pad, left * size), to += left * p.pixel;
  copy_pixels(p, row, inside, to), to += inside * p.pixel;
  memset(to, pad, (p.width - left - inside) * size);
}

// A copy of the pixels that the windows of some lines of an image read for a matrix. Valid in this
// thread until the next call.
template <class E>
const typename E::Value* copied(const Tiling<E>& p, long matrix, long line, long count) {
  using Value = typename E::Value;
  static thread_local Scratch<Value> scratch;
  const Geometry& g = p.geometry;
  const long rows = rows_of_lines(g, count), size = p.width * p.pixel;
  const long top = line % g.out_height * g.stride_height - g.pad_top;
  const Value* image = p.x + line / g.out_height * g.height * g.width * g.channels;
  Value* const all = scratch.of(rows * size + kPanel);
  for (long i = 0; i < rows; ++i) {
    const long y = top + i;
    if (y < 0 || y >= g.height) {
      memset(all + i * size, padding(p.matrix.epilogue), size * sizeof(Value));
    } else {
      copy_row(p, image + y * g.width * g.channels + channel_of(g, matrix), all + i * size);
    }
  }
  return all;
}

// The left matrix of line `i` of a block that starts with `line`.
template <class E>
Block<E> left_matrix(const Tiling<E>& p, long matrix, long line, long i,
                     const typename E::Value* block) {
  const Geometry& g = p.geometry;
  const long row = (line + i) * p.line, count = std::min(p.line, p.results - row);
  const long depth = p.matrix.depth;
  if (p.is_direct) {
    const auto* a = p.x + row * g.channels + channel_of(g, matrix);
    return {
        .row = row,
        .count = count,
        .from = 0,
        .to = depth,
        .a = a,
        .stride = g.channels,
    };
  }
  return {
      .row = row,
      .count = count,
      .from = 0,
      .to = depth,
      .a = block + i * g.stride_height * p.width * p.pixel,
      .stride = g.stride_width * p.pixel,
      .runs = g.window_height,
      .run_stride = g.dilation_height * p.width * p.pixel,
      .length = run_length(g),
      .is_broadcast = g.packed_groups > 1,
  };
}

template <class E>
void run_block(const Tiling<E>& p, long index, long line, long count) {
  const Matrix<E> matrix = matrix_of(p, index);
  const auto* block = p.is_direct ? nullptr : copied(p, index, line, count);
  const long panels = panels_of_matrix(p.geometry);
  for (long panel = 0; panel < panels; panel += kPanels)
    for (long i = 0; i < count; ++i)
      multiply(p.set, matrix, left_matrix(p, index, line, i, block), panel,
               std::min(panels, panel + kPanels));
}

template <class E>
void run_task(const void* tiling, long index) {
  const Tiling<E>& p = *static_cast<const Tiling<E>*>(tiling);
  const long first = index / p.line_tasks * p.matrices_of_task;
  const long last = std::min(matrices(p.geometry), first + p.matrices_of_task);
  const long begin = index % p.line_tasks * p.lines_of_task;
  const long end = std::min(p.lines, begin + p.lines_of_task);
  for (long line = begin; line < end;) {
    const long of_image = p.geometry.out_height - line % p.geometry.out_height;
    const long count = p.is_direct ? 1 : std::min({of_image, p.lines_of_block, end - line});
    for (long matrix = first; matrix < last; ++matrix) run_block(p, matrix, line, count);
    line += count;
  }
}

}  // namespace

template <class E>
void run_by_lines(const Product<E>& product, const InstructionSet& set, const ThreadPool& pool) {
  const Tiling<E> tiling = tiling_of(product, set, pool.size());
  pool.loop(tiling.matrix_tasks * tiling.line_tasks, run_task<E>, &tiling);
}

template void run_by_lines(const Product<Float32>&, const InstructionSet&, const ThreadPool&);
template void run_by_lines(const Product<OrderedFloat32>&, const InstructionSet&,
                           const ThreadPool&);
template void run_by_lines(const Product<Int8>&, const InstructionSet&, const ThreadPool&);
template void run_by_lines(const Product<Int16>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
