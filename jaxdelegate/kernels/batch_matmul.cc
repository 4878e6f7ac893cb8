#include "batch_matmul.h"

#include <algorithm>

namespace kernels {

namespace {

constexpr long kTaskBytes = 128 << 10;  // of w, that justify waking a thread
constexpr long kTasks = 4;              // per thread, since threads do not run equally fast

struct Tiling {
  const BatchMatMul& work;
  const InstructionSet& set;
  long columns_of_task, column_tasks;  // of a pair
};

void run_task(const void* tiling, long index) {
  const Tiling& t = *static_cast<const Tiling*>(tiling);
  const BatchMatMul& m = t.work;
  const long pair = index / t.column_tasks;
  const long column = index % t.column_tasks * t.columns_of_task;
  const float* const w = m.w + pair * m.depth * m.columns;
  const InPlaceProduct product{
      .x = m.x + pair * m.rows * m.depth,
      .w = w + column * (m.is_transposed ? m.depth : 1),
      .y = m.y + pair * m.rows * m.columns + column,
      .x_stride = m.depth,
      .w_stride = m.is_transposed ? m.depth : m.columns,
      .y_stride = m.columns,
      .rows = m.rows,
      .depth = m.depth,
      .columns = std::min(t.columns_of_task, m.columns - column),
  };
  const Float32Functions& f = *t.set.float32;
  (m.is_transposed ? f.multiply_transposed_in_place : f.multiply_in_place)(product);
}

}  // namespace

void run(const BatchMatMul& m, const InstructionSet& set, const ThreadPool& pool) {
  const double bytes = 1.0 * m.batch * m.depth * m.columns * sizeof(float);
  const long most = pool.size() < 2 ? 1 : pool.size() * kTasks;
  const long goal = std::clamp(static_cast<long>(bytes / kTaskBytes), 1L, most);
  const long parts = std::min(ceil_div(goal, m.batch), ceil_div(m.columns, kPanel));
  const long columns = round_up(ceil_div(m.columns, parts), kPanel);
  const Tiling tiling{
      .work = m,
      .set = set,
      .columns_of_task = columns,
      .column_tasks = ceil_div(m.columns, columns),
  };
  pool.loop(m.batch * tiling.column_tasks, run_task, &tiling);
}

}  // namespace kernels
