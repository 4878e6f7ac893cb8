// The processor's features, as far as the operating system supports them.

#pragma once

#include <cstdint>

namespace kernels {

// One bit per feature of the processor that an instruction set needs.
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
  kF16c = 1 << 9,
};

// Registers of CPUID by leaf (and subleaf), and XCR0, which XGETBV reads; zero if missing.
struct CpuRegisters {
  uint32_t leaf1_ecx;
  uint32_t leaf7_ebx, leaf7_ecx;
  uint32_t leaf7_1_eax;
  uint64_t xcr0;
};

// The features in registers. Vectors count only if the operating system saves them.
// Source: Intel's Software Developer's Manual, volume 1, 13.3 and 14.3 to 15.4.
uint32_t features_of(const CpuRegisters&);

// The features of this processor.
uint32_t cpu_features();

// Whether vectors of 512 bits are read from memory faster without prefetches in the program: assumed
// of AMD's processors, because it was measured on a Zen 4. On a Xeon prefetches were faster.
bool fetches_ahead();

}  // namespace kernels
