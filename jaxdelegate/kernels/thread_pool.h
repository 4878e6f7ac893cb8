// Loops over the threads that XLA:CPU runs its own kernels on.

#pragma once

#include "xla/ffi/api/c_api.h"

namespace kernels {

class ThreadPool {
 public:
  explicit ThreadPool(const XLA_FFI_CallFrame& frame) : api_(frame.api), context_(frame.ctx) {}

  // How many threads there are, the caller's among them.
  long size() const;

  // Calls body(task, 0), ... body(task, count - 1), on several threads; returns when all are done.
  // Each begins with a share of indices side by side, the same one in every loop where it can be.
  // Throws OutOfMemory if one of the tasks did; the others are called all the same.
  void loop(long count, void (*body)(const void* task, long index), const void* task) const;

 private:
  bool schedule(void (*run)(void*), void* data) const;
  void forget(XLA_FFI_Error* error) const;

  const XLA_FFI_Api* api_;
  XLA_FFI_ExecutionContext* context_;
};

}  // namespace kernels
