#include "cpu.h"

#include <cpuid.h>

namespace kernels {

namespace {

// Parts of XSAVE's state: xmm and ymm; also masks, the upper halves of zmm, and zmm16 to zmm31.
constexpr uint64_t kYmmState = 0x06, kZmmState = 0xE0;

bool has_bit(uint64_t word, int bit) { return word >> bit & 1; }

uint64_t xcr0() {
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

CpuRegisters read_registers() {
  CpuRegisters r{};
  uint32_t eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) r.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    r.leaf7_ebx = ebx, r.leaf7_ecx = ecx;
    const uint32_t subleaves = eax;
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) r.leaf7_1_eax = eax;
  }
  if (has_bit(r.leaf1_ecx, 27)) r.xcr0 = xcr0();
  return r;
}

}  // namespace

uint32_t features_of(const CpuRegisters& r) {
  const bool has_xgetbv = has_bit(r.leaf1_ecx, 27), has_avx = has_bit(r.leaf1_ecx, 28);
  if (!has_xgetbv || !has_avx || (r.xcr0 & kYmmState) != kYmmState) return 0;
  const auto feature = [](uint32_t word, int bit, uint32_t f) {
    return has_bit(word, bit) ? f : 0;
  };
  uint32_t features = feature(r.leaf1_ecx, 12, kFma) | feature(r.leaf1_ecx, 29, kF16c) |
                      feature(r.leaf7_ebx, 5, kAvx2) | feature(r.leaf7_1_eax, 4, kAvxVnni);
  if ((r.xcr0 & kZmmState) == kZmmState) {
    features |= feature(r.leaf7_ebx, 16, kAvx512f) | feature(r.leaf7_ebx, 17, kAvx512dq) |
                feature(r.leaf7_ebx, 30, kAvx512bw) | feature(r.leaf7_ebx, 31, kAvx512vl) |
                feature(r.leaf7_ecx, 11, kAvx512vnni) | feature(r.leaf7_1_eax, 5, kAvx512bf16);
  }
  return features;
}

bool fetches_ahead() {
  static const bool kIsAmd = [] {
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_AMD_ebx;
  }();
  return kIsAmd;
}

uint32_t cpu_features() {
  static const uint32_t kFeatures = features_of(read_registers());
  return kFeatures;
}

}  // namespace kernels
