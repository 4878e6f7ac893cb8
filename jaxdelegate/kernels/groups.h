// Convolutions whose windows are multiplied in place, line by line: those with groups of channels,
// and most others.

#pragma once

#include "product.h"

namespace kernels {

// `run` for a product.
template <class E>
void run_by_lines(const Product<E>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
