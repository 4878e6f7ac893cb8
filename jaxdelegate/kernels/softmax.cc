#include "softmax.h"

#include <algorithm>

namespace kernels {

namespace {

constexpr long kTaskValues = 16384;  // that justify waking a thread

struct Tiling {
  const Softmax& work;
  const InstructionSet& set;
  long rows_of_task;
};

void run_task(const void* tiling, long index) {
  const Tiling& t = *static_cast<const Tiling*>(tiling);
  const Softmax& s = t.work;
  const long begin = index * t.rows_of_task, end = std::min(s.rows, begin + t.rows_of_task);
  for (long i = begin; i < end; ++i)
    t.set.float32->softmax_of(s.x + i * s.count, s.count, s.y + i * s.count);
}

}  // namespace

void run(const Softmax& s, const InstructionSet& set, const ThreadPool& pool) {
  const long rows = std::max(kTaskValues / s.count, 1L);
  const Tiling tiling{.work = s, .set = set, .rows_of_task = rows};
  pool.loop(ceil_div(s.rows, rows), run_task, &tiling);
}

}  // namespace kernels
