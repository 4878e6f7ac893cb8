// Attention: softmax(scale * q k^T + mask) v for each head. Keys that the mask hides from all queries
// of a block are not read.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

// A mask of this value or less hides a key: its share is zero.
constexpr float kHides = -1e9f;

struct Attention {
  long images, heads, queries, keys, size;
  bool keys_last, values_last;  // k and v are [images, heads, size, keys]
  const float* q;               // [images, heads, queries, size]
  const float *k, *v;           // [images, heads, keys, size]
  // [mask_images, mask_heads, mask_queries, keys], added to the logits; or null. An image of the mask
  // serves as many adjacent ones; its heads and queries are 1 or all.
  const float* mask;
  long mask_images, mask_heads, mask_queries;
  float scale;
  float* y;  // like q
};

void run(const Attention&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
