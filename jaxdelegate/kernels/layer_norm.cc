#include "layer_norm.h"

#include <algorithm>

namespace kernels {

namespace {

constexpr long kTaskValues = 16384;  // that justify waking a thread

struct Tiling {
  const LayerNorm& work;
  const InstructionSet& set;
  long rows_of_task;
};

void run_task(const void* tiling, long index) {
  const Tiling& t = *static_cast<const Tiling*>(tiling);
  const LayerNorm& n = t.work;
  const long begin = index * t.rows_of_task, end = std::min(n.rows, begin + t.rows_of_task);
  for (long i = begin; i < end; ++i)
    t.set.float32->normalize(n.row, n.x + i * n.row.count, n.y + i * n.row.count);
}

}  // namespace

void run(const LayerNorm& n, const InstructionSet& set, const ThreadPool& pool) {
  const long rows = std::max(kTaskValues / n.row.count, 1L);
  const Tiling tiling{.work = n, .set = set, .rows_of_task = rows};
  pool.loop(ceil_div(n.rows, rows), run_task, &tiling);
}

}  // namespace kernels
