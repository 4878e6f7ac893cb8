// The kernels of every instruction set, and which of them this process uses.

#pragma once

#include <cstdint>

#include "kernels.h"

namespace kernels {

// All sets, the best one first; `number` from 0 on, null after the last one.
const InstructionSet* instruction_set(long number);

// The first set that such a processor has, from the one called `most` on; null: it has none of
// them, or `most` is "none". `most` null: from the best one on.
const InstructionSet* select(uint32_t features, const char* most);

// The set in use; null: none. It is the best that this processor has, unless `limit` said
// otherwise.
const InstructionSet* instruction_set();

// Uses no better set than `most` from now on. False: there is no set of this name.
bool limit(const char* most);

}  // namespace kernels
