// Memory of one thread, for what a task lays out.

#pragma once

#include <cstdlib>

namespace kernels {

// Grows, and is kept: what is freed would be mapped anew by the next call.
class Scratch {
 public:
  ~Scratch() { free(data_); }

  float* of(long floats) {
    if (floats > size_) {
      free(data_);
      size_ = (floats + 15) / 16 * 16;
      data_ = static_cast<float*>(aligned_alloc(64, size_ * sizeof(float)));
      if (data_ == nullptr) abort();
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  long size_ = 0;
};

}  // namespace kernels
