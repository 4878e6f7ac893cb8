// Transposed convolutions.

#pragma once

#include "product.h"

namespace kernels {

// A transposed convolution as ordinary ones. Along each dimension, the results at a distance of the
// stride are a phase: they read the image through the same taps, each the stride away from the next.
// So for each pair of phases the results are a product of matrices, whose taps are mirrored.
// The geometry's strides and pads are those of the windows over y; no stride is larger than a window.
template <class E>
struct Transposed : Product<E> {};

inline long phases(const Geometry& g) { return g.stride_height * g.stride_width; }

// Result i * stride + phase reads the pixels [i + end - taps, i + end) along a dimension.
struct Phase {
  long taps, end;
};

inline Phase phase_of(long window, long stride, long pad, long phase) {
  return {ceil_div(window - (phase + pad) % stride, stride), (phase + pad) / stride + 1};
}

inline Phase row_phase(const Geometry& g, long phase) {
  return phase_of(g.window_height, g.stride_height, g.pad_top, phase / g.stride_width);
}

inline Phase column_phase(const Geometry& g, long phase) {
  return phase_of(g.window_width, g.stride_width, g.pad_left, phase % g.stride_width);
}

// The depth of the product of a pair of phases, in a run for each row of taps.
template <class E>
long depth_of_phase(const Geometry& g, long phase) {
  return row_phase(g, phase).taps * round_up(column_phase(g, phase).taps * g.channels, E::kDeep);
}

template <class E>
void run(const Transposed<E>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
