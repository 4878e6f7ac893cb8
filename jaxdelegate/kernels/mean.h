// Means over the pixels of images, channel by channel.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

struct Mean {
  long images, pixels, channels;
  const float* x;  // [images, pixels, channels]
  float* y;        // [images, channels]
};

void run(const Mean&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
