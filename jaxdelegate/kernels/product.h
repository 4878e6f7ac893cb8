// Convolutions without groups, and products of matrices, which are convolutions of one pixel.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

template <class E>
struct Product {
  Geometry geometry;
  const typename E::Value* x;  // [images, height, width, channels]
  // Panels of [window_height * (window_width * channels, filled up to a multiple of kDeep), units].
  const typename E::Weight* weights;
  const typename E::Sum* bias;  // [units], of integers filled up to whole panels, as their scales
  typename E::Value* y;         // [images, out_height, out_width, units]
  typename E::Ending ending;
  Finish finish;  // behind the ending
};

// Values of the depth that a window row takes.
template <class E>
long run_depth(const Geometry& g) {
  return round_up(g.window_width * g.channels, E::kDeep);
}

template <class E>
void run(const Product<E>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
