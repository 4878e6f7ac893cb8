// What the processor can execute, and what the operating system keeps of its registers.

#pragma once

#include <cstdint>

namespace kernels {

// One bit for each feature of the processor that an instruction set needs.
enum Feature : uint32_t {
  kAvx2 = 1 << 0,
  kFma = 1 << 1,
  kAvxVnni = 1 << 2,
  kAvx512f = 1 << 3,
  kAvx512bw = 1 << 4,
  kAvx512dq = 1 << 5,
  kAvx512vl = 1 << 6,
  kAvx512vnni = 1 << 7,
  kAvx512bf16 = 1 << 8,
};

// Registers of CPUID, by leaf (and subleaf), and XCR0, which XGETBV reads. A leaf or a register
// that the processor does not have is zero.
struct CpuRegisters {
  uint32_t leaf1_ecx;
  uint32_t leaf7_ebx, leaf7_ecx;
  uint32_t leaf7_1_eax;
  uint64_t xcr0;
};

// The features after some registers. Vectors count only where the operating system saves them.
// Source: Intel's Software Developer's Manual, volume 1, 13.3 and 14.3 to 15.4.
uint32_t features_of(const CpuRegisters&);

// Those of this processor.
uint32_t cpu_features();

}  // namespace kernels
