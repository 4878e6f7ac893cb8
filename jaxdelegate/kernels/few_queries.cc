#include "few_queries.h"

#include "batch_matmul.h"
#include "scratch.h"

namespace kernels {

namespace {

struct Shares {
  const FewQueries& work;
  const InstructionSet& set;
  float* logits;  // [heads, queries, keys]; softmax replaces them
};

void run_task(const void* shares, long head) {
  const Shares& s = *static_cast<const Shares*>(shares);
  const FewQueries& a = s.work;
  float* row = s.logits + head * a.queries * a.keys;
  for (long i = 0; i < a.queries; ++i, row += a.keys) {
    const long masked = head * a.mask_heads / a.heads * a.mask_queries + i % a.mask_queries;
    s.set.float32->softmax(row, a.keys, a.scale, a.mask ? a.mask + masked * a.keys : nullptr);
  }
}

}  // namespace

void run(const FewQueries& a, const InstructionSet& set, const ThreadPool& pool) {
  static thread_local Scratch<float> scratch;
  float* const logits = scratch.of(a.heads * a.queries * a.keys);
  const BatchMatMul by_keys{
      .batch = a.heads,
      .rows = a.queries,
      .depth = a.size,
      .columns = a.keys,
      .is_transposed = !a.keys_last,
      .x = a.q,
      .w = a.k,
      .y = logits,
  };
  run(by_keys, set, pool);
  const Shares shares{.work = a, .set = set, .logits = logits};
  pool.loop(a.heads, run_task, &shares);
  const BatchMatMul by_values{
      .batch = a.heads,
      .rows = a.queries,
      .depth = a.keys,
      .columns = a.size,
      .is_transposed = a.values_last,
      .x = logits,
      .w = a.v,
      .y = a.y,
  };
  run(by_values, set, pool);
}

}  // namespace kernels
