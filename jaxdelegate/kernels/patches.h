// Copies the pixels of windows to rows (im2col): the left matrix of a convolution as a product.

#pragma once

#include "kernels.h"

namespace kernels {

// Rows of window pixels: for `count` results from `row`, the pixels [first, last) of their windows.
// Each row of a window is padded to a multiple of `deep` values with arbitrary ones. Pixels outside
// the image have bytes `pad`. Valid in this thread until the next call.
template <class T>
const T* patches(const Geometry&, const T* x, long row, long count, long first, long last,
                 long deep, uint8_t pad);

}  // namespace kernels
