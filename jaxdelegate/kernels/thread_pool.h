// Parallel loops on the threads of XLA:CPU.

#pragma once

#include "xla/ffi/api/c_api.h"

namespace kernels {

class ThreadPool {
 public:
  using Context = decltype(XLA_FFI_CallFrame::ctx);

  explicit ThreadPool(const XLA_FFI_CallFrame& frame) : api_(frame.api), context_(frame.ctx) {}

  // The number of threads, including the caller's.
  long size() const;

  // Calls body(task, 0), ... body(task, count - 1) on several threads, and returns when all are
  // done. Each thread starts with a range of adjacent indices, the same in every loop if possible.
  // Throws OutOfMemory if a call did, after all other calls.
  void loop(long count, void (*body)(const void* task, long index), const void* task) const;

 private:
  bool schedule(void (*run)(void*), void* data) const;
  void discard(XLA_FFI_Error* error) const;

  const XLA_FFI_Api* api_;
  Context context_;
};

}  // namespace kernels
