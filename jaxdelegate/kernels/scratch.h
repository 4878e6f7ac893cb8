// Memory of one thread, for what a task lays out.

#pragma once

#include <cstdlib>

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
      if (data_ == nullptr) abort();
    }
    return data_;
  }

 private:
  static constexpr long kLine = 64 / sizeof(T);

  T* data_ = nullptr;
  long size_ = 0;
};

}  // namespace kernels
