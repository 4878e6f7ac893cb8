// What windows read, side by side: the left matrix of a convolution as a product.

#pragma once

#include "kernels.h"

namespace kernels {

// Rows of window pixels: of `count` results from `row` on, the pixels [first, last) of their
// windows. Every row of a window is filled up to a multiple of `deep` values, with anything. The
// bytes of padding are `pad`. The thread's own memory, until its next call.
template <class T>
const T* patches(const Geometry&, const T* x, long row, long count, long first, long last,
                 long deep, uint8_t pad);

}  // namespace kernels
