// What windows read, side by side: the left matrix of a convolution as a product.

#pragma once

#include "kernels.h"

namespace kernels {

// Rows of window pixels, [count, (last - first) * channels]: of `count` results from `row` on, the
// pixels [first, last) of their windows. The thread's own memory, until its next call.
const float* patches(const Geometry&, const float* x, long row, long count, long first, long last);

}  // namespace kernels
