// Attention of few queries, for example of one token and the keys and values in a cache: these are
// read where they are.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct FewQueries {
  long heads, queries, keys, size, mask_heads, mask_queries;
  bool keys_last, values_last;  // whether positions are the last dimension
  const float* q;               // [heads, queries, size]
  const float *k, *v;           // [heads, keys, size], or [heads, size, keys]
  const float* mask;  // [mask_heads, mask_queries, keys], added to the logits; or null
  float scale;
  float* y;  // like q
};

void run(const FewQueries&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
