// Convolutions with groups of channels.

#pragma once

#include "product.h"

namespace kernels {

// `run` for a product with several groups.
template <class E>
void run_groups(const Product<E>&, const InstructionSet&, const ThreadPool&);

}  // namespace kernels
