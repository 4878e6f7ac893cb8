#include "product.h"

#include <algorithm>
#include <utility>

#include "matrix.h"
#include "patches.h"

namespace kernels {

namespace {

constexpr long kDepth = 1152;           // products summed before sums go back to memory
constexpr long kRowsBytes = 256 << 10;  // of the rows of one block: part of a second-level cache
constexpr long kLeastRows = 56;         // of one block: each reads all weights
constexpr long kNarrow = 16;            // channels: with fewer, to copy windows costs as much as
                                        // to multiply them

// A convolution as a product of matrices, [rows, depth] x [depth, units], and how it is divided.
struct Plan {
  const Geometry& geometry;
  const InstructionSet& set;
  const float* x;
  Matrix matrix;
  long rows, panels;
  bool is_direct;  // the rows of the left matrix are those of x
  long unit;       // of the depth: not to be divided
  long depth_of_block, rows_of_block;
  Tasks tasks;
};

bool reads_rows(const Geometry& g) {
  return g.window_height == 1 && g.window_width == 1 && g.stride_height == 1 &&
         g.stride_width == 1 && g.out_height == g.height && g.out_width == g.width;
}

Plan plan_of(const Product& product, const InstructionSet& set, long threads) {
  const Geometry& g = product.geometry;
  const long depth = g.window_height * g.window_width * g.channels;
  const Matrix matrix{product.weights, depth, g.units, product.bias, product.y, product.range};
  Plan p{g, set, product.x, matrix, g.images * g.out_height * g.out_width,
         ceil_div(g.units, kPanel), reads_rows(g), 1, 0, 0, {}};
  if (!p.is_direct) p.unit = g.channels;
  p.depth_of_block = std::max(1L, ceil_div(depth / p.unit, ceil_div(depth, kDepth))) * p.unit;
  const long fitting = kRowsBytes / 4 / p.depth_of_block / kMostRows * kMostRows;
  p.rows_of_block = std::max(kLeastRows, fitting);
  p.tasks = divide(p.rows, depth, g.units, threads);
  return p;
}

// Rows of the left matrix that lie in x, or are copied from there.
void multiply_rows(const Plan& p, long row, long count, long first, long last) {
  const long depth = p.matrix.depth;
  for (long from = 0; from < depth; from += p.depth_of_block) {
    const long to = std::min(depth, from + p.depth_of_block);
    Block block{row, count, from, to, p.x + row * depth + from, depth};
    if (!p.is_direct) {
      block.a = patches(p.geometry, p.x, row, count, from / p.unit, to / p.unit);
      block.stride = to - from;
    }
    multiply(p.set, p.matrix, block, first, last);
  }
}

// Windows that lie in the image, of results side by side: read where they are, a run of pixels for
// each row of a window.
void multiply_windows(const Plan& p, long row, long count, long first, long last) {
  const Geometry& g = p.geometry;
  const long out_x = row % g.out_width, out_y = row / g.out_width % g.out_height;
  const long top = row / g.out_width / g.out_height * g.height - g.pad_top;
  const long y = top + out_y * g.stride_height, x = out_x * g.stride_width - g.pad_left;
  const float* first_window = p.x + (y * g.width + x) * g.channels;
  Block block{row, count, 0, p.matrix.depth, first_window, g.stride_width * g.channels};
  block.runs = g.window_height;
  block.run_stride = g.dilation_height * g.width * g.channels;
  multiply(p.set, p.matrix, block, first, last);
}

// How many results from `row` on, in its row of the image, read padding (false) or none (true).
std::pair<long, bool> alike(const Geometry& g, long row) {
  const long x = row % g.out_width, y = row / g.out_width % g.out_height;
  const long top = y * g.stride_height - g.pad_top;
  const long bottom = top + (g.window_height - 1) * g.dilation_height;
  const long begin = (g.pad_left + g.stride_width - 1) / g.stride_width;
  const long end = (g.width + g.pad_left - g.window_width + g.stride_width) / g.stride_width;
  if (top < 0 || bottom >= g.height || x >= end) return {g.out_width - x, false};
  if (x < begin) return {std::min(begin, g.out_width) - x, false};
  return {std::min(end, g.out_width) - x, true};
}

void multiply_narrow(const Plan& p, long row, long end, long first, long last) {
  while (row < end) {
    const auto [length, is_inside] = alike(p.geometry, row);
    const long count = std::min({length, p.rows_of_block, end - row});
    (is_inside ? multiply_windows : multiply_rows)(p, row, count, first, last);
    row += count;
  }
}

void run_task(const void* plan, long index) {
  const Plan& p = *static_cast<const Plan*>(plan);
  const long begin = index / p.tasks.panel_tasks * p.tasks.rows_of_task;
  const long end = std::min(p.rows, begin + p.tasks.rows_of_task);
  const long first = index % p.tasks.panel_tasks * p.tasks.panels_of_task;
  const long last = std::min(p.panels, first + p.tasks.panels_of_task);
  const Geometry& g = p.geometry;
  if (!p.is_direct && g.channels < kNarrow && g.dilation_width == 1) {
    multiply_narrow(p, begin, end, first, last);
    return;
  }
  for (long row = begin; row < end; row += p.rows_of_block)
    multiply_rows(p, row, std::min(p.rows_of_block, end - row), first, last);
}

}  // namespace

void run(const Product& product, const InstructionSet& set, const ThreadPool& pool) {
  const Plan plan = plan_of(product, set, pool.size());
  pool.loop(plan.tasks.count(), run_task, &plan);
}

}  // namespace kernels
