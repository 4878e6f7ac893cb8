#include "product.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "groups.h"
#include "matrix.h"
#include "patches.h"
#include "scratch.h"

namespace kernels {

namespace {

constexpr double kTaskBytes = 4e5;      // of products that justify waking a thread
constexpr long kDepth = 1152;           // products summed before sums are stored to memory
constexpr long kRowsBytes = 256 << 10;  // of a block's rows and results: part of a second-level cache
constexpr long kLeastRows = 56;         // of a block, since each block reads all weights
constexpr long kNarrowBytes = 64;       // of a pixel: with fewer, copying windows takes as long as
                                        // multiplying them
constexpr long kPanelBytes = 128 << 10;  // of weights: some panels then fit a second-level cache

// A convolution as a matrix product, [rows, depth] x [depth, out_channels], and its division into
// blocks and tasks.
template <class E>
struct Tiling {
  const Geometry& geometry;
  const InstructionSet& set;
  const typename E::Value* x;
  const typename E::Operand* image;  // x as operands; null if tasks round the rows that they multiply
  Matrix<E> matrix;
  long rows;
  bool is_direct;  // x is the left matrix
  long step;       // of the depth, which is not divided further
  long depth_of_block, rows_of_block;
  Tasks tasks;
};

template <class E>
Tiling<E> tiling_of(const Product<E>& product, const InstructionSet& set, long threads) {
  const Geometry& g = product.geometry;
  const long depth = g.window_height * run_depth<E>(g);
  const Matrix<E> matrix{
      .weights = product.weights,
      .depth = depth,
      .columns = g.out_channels,
      .bias = product.bias,
      .y = product.y,
      .epilogue = product.epilogue,
      .finish = product.finish.is_any() ? &product.finish : nullptr,
  };
  Tiling<E> p{
      .geometry = g,
      .set = set,
      .x = product.x,
      .image = nullptr,
      .matrix = matrix,
      .rows = g.batch * g.out_height * g.out_width,
      .is_direct = reads_pixels(g) && depth == g.channels,
  };
  p.step = p.is_direct ? E::kDeep : g.channels;
  if (!E::kSplits) p.step = depth;
  p.depth_of_block = std::max(1L, ceil_div(depth / p.step, ceil_div(depth, kDepth))) * p.step;
  const long row_bytes = p.depth_of_block * sizeof(typename E::Operand) +
                         g.out_channels * sizeof(typename E::Value);
  const long fitting = kRowsBytes / row_bytes / kMostRows * kMostRows;
  p.rows_of_block = std::max(kLeastRows, fitting);
  p.tasks = divide(p.rows, depth, g.out_channels, threads, kTaskBytes / sizeof(typename E::Weight),
                   !p.is_direct);
  return p;
}

// x as operands of products with its windows.
template <class E>
const typename E::Operand* operands_of(const Tiling<E>& p, const ThreadPool&) {
  return p.x;
}

void round_row(const void* tiling, long index) {
  const auto& [p, y] = *static_cast<const std::pair<const Tiling<Bfloat16>&, uint16_t*>*>(tiling);
  const long count = p.geometry.width * p.geometry.channels;
  p.set.bfloat16->round(p.x + index * count, count, y + index * count);
}

// Valid in this thread until the next call.
const uint16_t* operands_of(const Tiling<Bfloat16>& p, const ThreadPool& pool) {
  static thread_local Scratch<uint16_t> scratch;
  const Geometry& g = p.geometry;
  if (p.is_direct) return nullptr;
  uint16_t* const image = scratch.of(g.batch * g.height * g.width * g.channels);
  const std::pair<const Tiling<Bfloat16>&, uint16_t*> work{p, image};
  pool.loop(g.batch * g.height, round_row, &work);
  return image;
}

// Sets the left matrix of a block.
template <class E>
void set_rows(const Tiling<E>&, Block<E>& block, const typename E::Operand* a, long stride) {
  block.a = a, block.stride = stride;
}

void set_rows(const Tiling<Bfloat16>& p, Block<Bfloat16>& block, const float* a, long stride) {
  static thread_local Scratch<uint16_t> scratch;
  const long depth = block.to - block.from;
  uint16_t* const rows = scratch.of(block.count * depth);
  for (long i = 0; i < block.count; ++i)
    p.set.bfloat16->round(a + i * stride, depth, rows + i * depth);
  block.a = rows, block.stride = depth;
}

// Multiplies rows of the left matrix, read directly from x or copied.
template <class E>
void multiply_rows(const Tiling<E>& p, long row, long count, long first, long last) {
  const Geometry& g = p.geometry;
  const long depth = p.matrix.depth, run = run_depth<E>(g);
  if constexpr (!E::kSplits) {
    if (run != g.window_width * g.channels) {
      const long pixels = g.window_height * g.window_width;
      const auto* a = patches(g, p.image, row, count, 0, pixels, E::kDeep, padding(p.matrix.epilogue));
      const Block<E> block{
          .row = row,
          .count = count,
          .from = 0,
          .to = depth,
          .a = a,
          .stride = depth,
          .runs = g.window_height,
          .run_stride = run,
          .length = g.window_width * g.channels,
      };
      multiply(p.set, p.matrix, block, first, last);
      return;
    }
  }
  for (long from = 0; from < depth; from += p.depth_of_block) {
    const long to = std::min(depth, from + p.depth_of_block);
    Block<E> block{
        .row = row,
        .count = count,
        .from = from,
        .to = to,
        .a = nullptr,
        .stride = 0,
    };
    if (p.is_direct) {
      set_rows(p, block, p.x + row * depth + from, depth);
    } else {
      block.a = patches(g, p.image, row, count, from / g.channels, to / g.channels, E::kDeep,
                        padding(p.matrix.epilogue));
      block.stride = to - from;
    }
    multiply(p.set, p.matrix, block, first, last);
  }
}

template <class E>
void run_task(const void* tiling, long index) {
  const Tiling<E>& p = *static_cast<const Tiling<E>*>(tiling);
  const auto [begin, end, first, last] = p.tasks.at(index);
  for (long row = begin; row < end; row += p.rows_of_block)
    multiply_rows(p, row, std::min(p.rows_of_block, end - row), first, last);
}

// An image of one column as one of one row, whose results are a line. The weights are the same if they
// need no padding.
template <class E>
Geometry with_lines(Geometry g) {
  const bool is_column = g.width == 1 && g.window_width == 1 && g.out_width == 1 && g.pad_left == 0;
  if (!is_column || g.channels / g.groups % E::kDeep != 0) return g;
  std::swap(g.height, g.width), std::swap(g.out_height, g.out_width);
  std::swap(g.window_height, g.window_width), std::swap(g.stride_height, g.stride_width);
  std::swap(g.dilation_height, g.dilation_width), std::swap(g.pad_top, g.pad_left);
  return g;
}

// Whether lines of results are multiplied with windows in place (groups.cc). That copies each pixel
// once, not for each window that has it, but reads all weights for each line.
template <class E>
bool has_lines(const Geometry& g, const InstructionSet& set) {
  if (g.groups > 1) return true;
  const bool is_window = g.window_height * g.window_width > 1 && g.dilation_width == 1;
  if (!is_window || g.channels * static_cast<long>(sizeof(typename E::Value)) < kNarrowBytes)
    return is_window;
  if (std::is_same_v<E, Int8> && set.widened != nullptr) return false;  // weights for each line
  const long panel = g.window_height * run_depth<E>(g) * kPanel * sizeof(typename E::Weight);
  return panel <= kPanelBytes && g.out_channels <= g.batch * g.out_height * g.out_width;
}

}  // namespace

template <class E>
void run(const Product<E>& given, const InstructionSet& set, const ThreadPool& pool) {
  Product<E> product = given;
  product.geometry = with_lines<E>(given.geometry);
  if constexpr (std::is_same_v<typename E::Value, typename E::Operand>) {
    if (has_lines<E>(product.geometry, set)) return run_by_lines(product, set, pool);
  }
  Tiling<E> tiling = tiling_of(product, set, pool.size());
  tiling.image = operands_of(tiling, pool);
  pool.loop(tiling.tasks.count(), run_task<E>, &tiling);
}

template void run(const Product<Float32>&, const InstructionSet&, const ThreadPool&);
template void run(const Product<OrderedFloat32>&, const InstructionSet&, const ThreadPool&);
template void run(const Product<Bfloat16>&, const InstructionSet&, const ThreadPool&);
template void run(const Product<Int8>&, const InstructionSet&, const ThreadPool&);
template void run(const Product<Int16>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
