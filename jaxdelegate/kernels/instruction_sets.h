// The kernels of every instruction set, and the best that the processor has.

#pragma once

#include "kernels.h"

namespace kernels {

// The set in use; null: this processor has none of them.
const InstructionSet* instruction_set();

// Use another set from now on. False: the processor does not have it.
bool use_instruction_set(const char* name);

}  // namespace kernels
