#include "batch_matmul.h"

#include <algorithm>

#include "matrix.h"
#include "scratch.h"

namespace kernels {

namespace {

constexpr long kTaskBytes = 128 << 10;    // of w, that justify waking a thread
constexpr double kTaskProducts = 4e5;     // likewise, of many rows
constexpr long kTasks = 4;                // per thread, since threads do not run equally fast
constexpr long kPackedBytes = 256 << 10;  // of w: part of a second-level cache
constexpr long kRows = 56;                // multiplied by all panels of a task

struct Tiling {
  const BatchMatMul& work;
  const InstructionSet& set;
  const float* zeros;
  long columns_of_task, column_tasks;  // of a pair
};

// The columns of a pair that a task computes.
struct Part {
  const float *x, *w;
  float* y;
  long columns;
};

Part part_of(const Tiling& t, long index) {
  const BatchMatMul& m = t.work;
  const long pair = index / t.column_tasks;
  const long column = index % t.column_tasks * t.columns_of_task;
  return {
      .x = m.x + pair * m.rows * m.depth,
      .w = m.w + pair * m.depth * m.columns + column * (m.is_transposed ? m.depth : 1),
      .y = m.y + pair * m.rows * m.columns + column,
      .columns = std::min(t.columns_of_task, m.columns - column),
  };
}

// ---- a few rows: w is read once, where it is

void run_in_place(const void* tiling, long index) {
  const Tiling& t = *static_cast<const Tiling*>(tiling);
  const BatchMatMul& m = t.work;
  const Part part = part_of(t, index);
  const InPlaceProduct product{
      .x = part.x,
      .w = part.w,
      .y = part.y,
      .x_stride = m.depth,
      .w_stride = m.is_transposed ? m.depth : m.columns,
      .y_stride = m.columns,
      .rows = m.rows,
      .depth = m.depth,
      .columns = part.columns,
  };
  const Float32Functions& f = *t.set.float32;
  (m.is_transposed ? f.multiply_transposed_in_place : f.multiply_in_place)(product);
}

// ---- many rows: each task copies its columns of w into panels

void run_packed(const void* tiling, long index) {
  static thread_local Scratch<float> scratch;
  const Tiling& t = *static_cast<const Tiling*>(tiling);
  const BatchMatMul& m = t.work;
  const Part part = part_of(t, index);
  const long panels = ceil_div(part.columns, kPanel);
  float* const packed = scratch.of((panels * m.depth + kPackedRows) * kPanel);
  if (m.is_transposed) {
    pack_columns(t.set, part.w, m.depth, m.depth, part.columns, packed);
  } else {
    pack_rows(part.w, m.columns, m.depth, part.columns, packed);
  }
  const Matrix<Float32> matrix{
      .weights = packed,
      .depth = m.depth,
      .columns = part.columns,
      .bias = t.zeros,
      .y = part.y,
      .epilogue = kAll,
      .stride = m.columns,
  };
  for (long row = 0; row < m.rows; row += kRows) {
    const Block<Float32> block{
        .row = row,
        .count = std::min(kRows, m.rows - row),
        .from = 0,
        .to = m.depth,
        .a = part.x + row * m.depth,
        .stride = m.depth,
    };
    multiply(t.set, matrix, block, 0, panels);
  }
}

long columns_of_task(const BatchMatMul& m, bool is_packed, long threads) {
  const double bytes = 1.0 * m.batch * m.depth * m.columns * sizeof(float);
  const double products = 1.0 * m.batch * m.rows * m.depth * m.columns;
  const double worth = is_packed ? products / kTaskProducts : bytes / kTaskBytes;
  const long most = threads < 2 ? 1 : threads * kTasks;
  const long goal = std::clamp(static_cast<long>(worth), 1L, most);
  const long parts = std::min(ceil_div(goal, m.batch), ceil_div(m.columns, kPanel));
  const long columns = round_up(ceil_div(m.columns, parts), kPanel);
  const long fitting = kPackedBytes / (m.depth * static_cast<long>(sizeof(float))) / kPanel * kPanel;
  return is_packed ? std::min(columns, std::max(fitting, kPanel)) : columns;
}

}  // namespace

void run(const BatchMatMul& m, const InstructionSet& set, const ThreadPool& pool) {
  const bool is_packed = m.rows > (m.is_transposed ? kMostRowsTransposed : kMostRowsInPlace);
  const long columns = columns_of_task(m, is_packed, pool.size());
  const Tiling tiling{
      .work = m,
      .set = set,
      .zeros = is_packed ? zeros_of(round_up(columns, kPanel)) : nullptr,
      .columns_of_task = columns,
      .column_tasks = ceil_div(m.columns, columns),
  };
  pool.loop(m.batch * tiling.column_tasks, is_packed ? run_packed : run_in_place, &tiling);
}

}  // namespace kernels
