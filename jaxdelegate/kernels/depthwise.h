// Depthwise convolutions, with one result channel per input channel.

#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace kernels {

template <class E>
struct Depthwise {
  Geometry geometry;
  const typename E::Value* x;  // [batch, height, width, channels]
  // [window_height / kRows, window_width, channels, kRows], the last rows padded with zeros.
  const typename E::DepthwiseWeight* weights;
  const typename E::Sum* bias;  // [channels]
  typename E::Value* y;         // [batch, out_height, out_width, channels]
  typename E::Epilogue epilogue;
  Finish finish;  // after the epilogue
};

template <class E>
void run(const Depthwise<E>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
