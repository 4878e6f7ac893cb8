#include "matrix.h"

#include <algorithm>
#include <cstring>

namespace kernels {

namespace {

constexpr long kTaskProducts = 250000;  // what a thread is worth waking for
constexpr long kTasks = 4;              // for each thread: they do not all run equally fast

int panels_at_once(const InstructionSet& set, long rows, long left) {
  for (int n : {4, 2}) {
    if (left >= n && set.rows[n] > 0 && (n == 2 || rows <= set.rows[n])) return n;
  }
  return 1;
}

// A tile whose last columns are not there: it writes beside y, and its columns are copied.
void run_narrow(ProductKernel kernel, ProductTile t, long rows, long columns) {
  alignas(64) float sums[kMostRows * kMostPanels * kPanel], bias[kMostPanels * kPanel] = {};
  constexpr long kStride = kMostPanels * kPanel;
  float* y = t.y;
  const long y_stride = t.y_stride;
  if (t.bias != nullptr) {
    memcpy(bias, t.bias, columns * sizeof(float));
    t.bias = bias;
  } else {
    for (long i = 0; i < rows; ++i)
      memcpy(sums + i * kStride, y + i * y_stride, columns * sizeof(float));
  }
  t.y = sums, t.y_stride = kStride;
  kernel(t);
  for (long i = 0; i < rows; ++i)
    memcpy(y + i * y_stride, sums + i * kStride, columns * sizeof(float));
}

// The rows of a block times `count` panels from `panel` on; `ahead`: those that come next.
void multiply_panels(const InstructionSet& set, const Matrix& matrix, const Block& block,
                     long panel, int count, long ahead) {
  const long column = panel * kPanel;
  const long columns = std::min(count * kPanel, matrix.columns - column);
  const long tiles = ceil_div(block.count, set.rows[count]);
  for (long tile = 0, row = 0; tile < tiles; ++tile) {
    const long rows = ceil_div(block.count - row, tiles - tile);
    ProductTile t;
    t.a = block.a + row * block.stride, t.a_stride = block.stride;
    t.runs = block.runs, t.run_stride = block.run_stride;
    t.b_stride = matrix.depth * kPanel;
    t.b = matrix.weights + panel * t.b_stride + block.from * kPanel;
    t.b_ahead = tile + 1 < tiles ? 0 : ahead;
    t.bias = block.from == 0 ? matrix.bias + column : nullptr;
    t.y = matrix.y + (block.row + row) * matrix.columns + column, t.y_stride = matrix.columns;
    t.depth = (block.to - block.from) / block.runs;
    t.is_last = block.to == matrix.depth;
    t.range = matrix.range;
    const ProductKernel kernel = set.product[count][rows - 1];
    if (columns == count * kPanel) {
      kernel(t);
    } else {
      run_narrow(kernel, t, rows, columns);
    }
    row += rows;
  }
}

}  // namespace

void multiply(const InstructionSet& set, const Matrix& matrix, const Block& block, long first,
              long last) {
  for (long panel = first; panel < last;) {
    const int count = panels_at_once(set, block.count, last - panel);
    const long stride = matrix.depth * kPanel;
    const bool is_end = panel + count >= last;
    // Behind the last panels come the next rows of the depth of the first ones.
    const long next_depth = (block.to - block.from) * kPanel - (panel - first) * stride;
    const long ahead = !is_end ? count * stride : block.to < matrix.depth ? next_depth : 0;
    multiply_panels(set, matrix, block, panel, count, ahead);
    panel += count;
  }
}

// Splits what is larger, so that each thread reads a part of it only: rows, or weights.
Tasks divide(long rows, long depth, long columns, long threads) {
  const double products = 1.0 * rows * depth * columns;
  const long most = threads < 2 ? 1 : threads * kTasks;
  const long goal = std::clamp(static_cast<long>(products / kTaskProducts), 1L, most);
  const long panels = ceil_div(columns, kPanel), pairs = ceil_div(panels, 2);
  const long tiles = ceil_div(rows, kMostRows);
  const long panel_goal = panels * kPanel > rows ? std::min(goal, pairs) : 1;
  const long row_goal = std::min(ceil_div(goal, panel_goal), tiles);
  Tasks tasks;
  tasks.panels_of_task = ceil_div(pairs, panel_goal) * 2;
  tasks.rows_of_task = ceil_div(tiles, row_goal) * kMostRows;
  tasks.panel_tasks = ceil_div(panels, tasks.panels_of_task);
  tasks.row_tasks = ceil_div(rows, tasks.rows_of_task);
  return tasks;
}

}  // namespace kernels
