// Memory of one thread, for what a task lays out.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kernels {

// Grows, and is kept: what is freed would be mapped anew by the next call.
template <class T>
class Scratch {
 public:
  ~Scratch() { free(data_); }

  T* of(long count) {
    if (count > size_) {
      free(data_);
      size_ = (count + kLine - 1) / kLine * kLine;
      data_ = static_cast<T*>(aligned_alloc(64, size_ * sizeof(T)));
      if (data_ == nullptr) fail();
    }
    return data_;
  }

 private:
  static constexpr long kLine = 64 / sizeof(T);

  // A task has no way to answer an error: it ends the process, as XLA does, and says why.
  [[noreturn]] void fail() const {
    fprintf(stderr, "jaxdelegate's kernels: no memory for %ld bytes\n",
            static_cast<long>(size_ * sizeof(T)));
    abort();
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
