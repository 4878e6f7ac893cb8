#include "attention.h"

#include <algorithm>
#include <cstring>

#include "matrix.h"
#include "scratch.h"

namespace kernels {

namespace {

constexpr long kRows = 56;   // of a block, whose logits stay in the cache
constexpr long kTasks = 2;   // per thread

struct Tiling {
  const Attention& work;
  const InstructionSet& set;
  const float* zeros;
  long rows_of_task, row_tasks;  // of one head
};

// Panels of [depth, columns] from values[row][column]; rows of `values` are `stride` floats apart.
void pack_rows(const float* values, long stride, long depth, long columns, float* panels) {
  for (long first = 0; first < columns; first += kPanel) {
    const long count = std::min(kPanel, columns - first);
    for (long i = 0; i < depth; ++i, panels += kPanel) {
      if (count < kPanel) memset(panels, 0, kPanel * sizeof(float));
      memcpy(panels, values + i * stride + first, count * sizeof(float));
    }
  }
}

// The memory of one task.
struct Memory {
  float *keys, *values, *logits, *sums;  // panels of k^T and v, [kRows, keys], [kRows, size]
};

Memory memory(const Attention& a) {
  static thread_local Scratch<float> scratch;
  const long keys = round_up(a.keys, kPanel), size = round_up(a.size, kPanel);
  float* all = scratch.of(keys * a.size + size * a.keys + kRows * (keys + size));
  float* values = all + keys * a.size;
  float* logits = values + size * a.keys;
  return {.keys = all, .values = values, .logits = logits, .sums = logits + kRows * keys};
}

void multiply_all(const Tiling& p, const Matrix<Float32>& matrix, const Block<Float32>& block) {
  multiply(p.set, matrix, block, 0, ceil_div(matrix.columns, kPanel));
}

// Queries [begin, begin + count) of a head.
void run_block(const Tiling& p, const Memory& m, long image, long head, long begin, long count) {
  const Attention& a = p.work;
  const long stride = a.heads * a.size, from = (image * a.queries + begin) * stride + head * a.size;
  const Matrix<Float32> keys{
      .weights = m.keys,
      .depth = a.size,
      .columns = a.keys,
      .bias = p.zeros,
      .y = m.logits,
      .epilogue = kAll,
  };
  const Block<Float32> queries{
      .row = 0,
      .count = count,
      .from = 0,
      .to = a.size,
      .a = a.q + from,
      .stride = stride,
  };
  multiply_all(p, keys, queries);
  const long mask = image * a.mask_image + head * a.mask_head;
  for (long i = 0; i < count; ++i) {
    const float* row = a.mask == nullptr ? nullptr : a.mask + mask + (begin + i) * a.mask_query;
    p.set.float32->softmax(m.logits + i * a.keys, a.keys, a.scale, row);
  }
  const Matrix<Float32> values{
      .weights = m.values,
      .depth = a.keys,
      .columns = a.size,
      .bias = p.zeros,
      .y = m.sums,
      .epilogue = kAll,
  };
  const Block<Float32> weights{
      .row = 0,
      .count = count,
      .from = 0,
      .to = a.keys,
      .a = m.logits,
      .stride = a.keys,
  };
  multiply_all(p, values, weights);
  for (long i = 0; i < count; ++i)
    memcpy(a.y + from + i * stride, m.sums + i * a.size, a.size * sizeof(float));
}

void run_task(const void* tiling, long index) {
  const Tiling& p = *static_cast<const Tiling*>(tiling);
  const Attention& a = p.work;
  const long head = index / p.row_tasks % a.heads, image = index / p.row_tasks / a.heads;
  const long begin = index % p.row_tasks * p.rows_of_task;
  const long end = std::min(a.queries, begin + p.rows_of_task);
  const Memory m = memory(a);
  const long stride = a.heads * a.size, from = image * a.keys * stride + head * a.size;
  pack_columns(p.set, a.k + from, stride, a.size, a.keys, m.keys);  // `values` are written later
  pack_rows(a.v + from, stride, a.keys, a.size, m.values);
  for (long row = begin; row < end; row += kRows)
    run_block(p, m, image, head, row, std::min(kRows, end - row));
}

}  // namespace

void run(const Attention& a, const InstructionSet& set, const ThreadPool& pool) {
  const float* const zeros = zeros_of(std::max(a.keys, a.size));
  const long heads = a.batch * a.heads, threads = pool.size();
  const long parts = threads < 2 ? 1 : ceil_div(threads * kTasks, heads);
  const long rows = std::max(ceil_div(a.queries, parts), kLeastChannels);
  const Tiling tiling{
      .work = a,
      .set = set,
      .zeros = zeros,
      .rows_of_task = rows,
      .row_tasks = ceil_div(a.queries, rows),
  };
  pool.loop(heads * tiling.row_tasks, run_task, &tiling);
}

}  // namespace kernels
