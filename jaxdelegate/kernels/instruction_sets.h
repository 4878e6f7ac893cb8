// The kernels of all instruction sets, and the choice of the set that this process uses.

#pragma once

#include <cstdint>

#include "kernels.h"

namespace kernels {

// All sets by index, the best first; null after the last.
const InstructionSet* instruction_set(long number);

// The best set that a processor with these features supports and that is not better than `most`;
// null: none, or `most` is "none". `most` null: no limit.
const InstructionSet* select(uint32_t features, const char* most);

// The set in use; null: none. It is the best that this processor supports within `limit`.
const InstructionSet* instruction_set();

// Limits the set in use to `most` or worse. False: the name is unknown.
bool limit(const char* most);

}  // namespace kernels
