// Convolutions, and products of matrices, which are convolutions with windows of one pixel.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

template <class E>
struct Product {
  Geometry geometry;
  const typename E::Value* x;  // [batch, height, width, channels]
  // For each matrix, panels of [window_height * depth of a run, its output channels].
  const typename E::Weight* weights;
  const typename E::Sum* bias;  // [columns] for each matrix, like the scales of integers
  typename E::Value* y;         // [batch, out_height, out_width, out_channels]
  typename E::Epilogue epilogue;
  Finish finish;  // after the epilogue
};

// The number of matrix products: one for each group, or for each pack of groups.
inline long matrices(const Geometry& g) { return g.groups / g.packed_groups; }

// Values of a group in a window row, which are contiguous.
inline long run_length(const Geometry& g) { return g.window_width * (g.channels / g.groups); }

// run_length, padded to whole steps.
template <class E>
long run_depth(const Geometry& g) {
  return round_up(run_length(g), E::kDeep);
}

inline long panels_of_matrix(const Geometry& g) {
  return ceil_div(g.out_channels / matrices(g), kPanel);
}

// Columns of a matrix's bias and scales.
template <class E>
long columns_of_matrix(const Geometry& g) {
  return E::kFillsBias ? panels_of_matrix(g) * kPanel : g.out_channels / matrices(g);
}

// Whether the packed groups fill a panel, and their channels of a pixel fit a vector for each half.
template <class E>
bool can_pack(const Geometry& g) {
  const long out_channels = g.out_channels / g.groups, depth = g.channels / g.groups;
  return out_channels * g.packed_groups == kPanel && kPanel / 2 % out_channels == 0 &&
         depth % E::kDeep == 0 && depth / E::kDeep <= out_channels;
}

// Whether each window is one pixel of the image, in order.
inline bool reads_pixels(const Geometry& g) {
  return g.window_height == 1 && g.window_width == 1 && g.stride_height == 1 &&
         g.stride_width == 1 && g.out_height == g.height && g.out_width == g.width;
}

template <class E>
void run(const Product<E>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
