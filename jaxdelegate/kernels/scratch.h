// Memory of one thread, for the copies that a task makes.

#pragma once

#include <cstdlib>
#include <cstring>

namespace kernels {

// Thrown if an allocation fails. Functions that run a task or handle a call catch it.
struct OutOfMemory {
  long bytes;  // of the allocation
};

// Grows, and lives as long as its thread: if it were freed, the next call would map it again, page
// by page. Most contents are as large as part of a cache; panels of an attention's keys and values
// are as large as one head, windows of integers as a few windows of the model. An image that is
// quantized on the fly takes one byte per value, one that is rounded to bfloat16 takes two.
template <class T>
class Scratch {
 public:
  ~Scratch() { free(data_); }

  T* of(long count) {
    if (count > size_) grow(count);
    return data_;
  }

 private:
  static constexpr long kLine = 64 / sizeof(T);

  void grow(long count) {
    free(data_);
    size_ = 0;
    const long size = (count + kLine - 1) / kLine * kLine;
    data_ = static_cast<T*>(aligned_alloc(64, size * sizeof(T)));
    if (data_ == nullptr) throw OutOfMemory{static_cast<long>(size * sizeof(T))};
    size_ = size;
  }

  T* data_ = nullptr;
  long size_ = 0;
};

// Zeros in place of a missing bias; valid in this thread until the next call.
inline const float* zeros_of(long count) {
  static thread_local Scratch<float> scratch;
  float* const zeros = scratch.of(count);
  memset(zeros, 0, count * sizeof(float));
  return zeros;
}

}  // namespace kernels
