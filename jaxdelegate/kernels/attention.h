// Attention: softmax(scale * q k^T + mask) v for each head; logits stay in the cache.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct Attention {
  long batch, queries, keys, heads, size;
  const float* q;        // [batch, queries, heads, size]
  const float *k, *v;    // [batch, keys, heads, size]
  const float* mask;     // [keys] for each query, added to the logits; or null
  long mask_image, mask_head, mask_query;  // strides of the mask
  float scale;
  float* y;              // like q
};

void run(const Attention&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
