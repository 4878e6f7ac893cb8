#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kernels {

// XLA's programs round to nearest and take subnormal numbers as zeros.
class FloatingPointState {
#if defined(__x86_64__)
 public:
  FloatingPointState() : before_(_mm_getcsr()) {
    constexpr unsigned kRounding = 0x6000, kZeros = 0x8040;
    _mm_setcsr((before_ & ~kRounding) | kZeros);
  }
  ~FloatingPointState() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

}  // namespace kernels
