// Memory of one thread, for what a task lays out.

#pragma once

#include <cstdlib>
#include <cstring>

namespace kernels {

// Thrown where a thread finds no memory. Whoever runs a task or answers a call catches it.
struct OutOfMemory {
  long bytes;  // that were asked for
};

// Grows, and is kept as long as its thread: what is freed would be mapped again by the next call,
// page by page. Most of what lies in it is as large as part of a cache; panels of an attention's
// keys and values, and windows of integers, as large as one head or a few windows of the model; an
// image that is quantized on the fly, a byte for each value.
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

// What stands for a bias that is not there; of one thread, until its next call.
inline const float* zeros_of(long count) {
  static thread_local Scratch<float> scratch;
  float* const zeros = scratch.of(count);
  memset(zeros, 0, count * sizeof(float));
  return zeros;
}

}  // namespace kernels
