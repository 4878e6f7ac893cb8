// Means over the pixels of images, channel by channel.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct Mean {
  long batch, pixels, channels;
  const float* x;  // [batch, pixels, channels]
  float* y;        // [batch, channels]
};

void run(const Mean&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
