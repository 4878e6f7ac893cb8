// Attention: softmax(scale * q k^T + mask) v for each head, logits never leaving the cache.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct Attention {
  long batch, queries, keys, heads, size;
  const float* q;        // [batch, queries, heads, size]
  const float *k, *v;    // [batch, keys, heads, size]
  const float* mask;     // added to the logits, [keys] for each of them; null: there is none
  long mask_image, mask_head, mask_query;  // from one of these to the next in the mask
  float scale;
  float* y;              // as q
};

void run(const Attention&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
