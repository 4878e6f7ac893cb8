// Helpers for functions that XLA calls with a call frame.

#pragma once

#include <algorithm>

#include "xla/ffi/api/c_api.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace kernels {

inline XLA_FFI_Error* make_error(const XLA_FFI_CallFrame& frame, const char* message,
                                 XLA_FFI_Error_Code code = XLA_FFI_Error_Code_INVALID_ARGUMENT) {
  XLA_FFI_Error_Create_Args args{
      .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
      .message = message,
      .errc = code,
  };
  return frame.api->XLA_FFI_Error_Create(&args);
}

// XLA requests the version once, when a handler is registered; returns whether it did. The library
// may have been built with the headers of a newer jaxlib: version 0.3 has all that it uses, and
// structs only grow at their end.
inline bool fill_metadata(const XLA_FFI_CallFrame& frame) {
  const auto* extension = frame.extension_start;  // its type was renamed in jaxlib 0.12
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return false;
  auto* metadata = reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version =
      std::min(XLA_FFI_API_MINOR, frame.api->api_version.minor_version);
  metadata->traits = 0;
  return true;
}

// A kernel under its exported name; call batches refer to it by its index.
struct Kernel {
  const char* name;
  XLA_FFI_Error* (*run)(XLA_FFI_CallFrame*);
};
extern const Kernel kKernels[];
extern const long kKernelCount;

inline const XLA_FFI_Buffer& argument(const XLA_FFI_CallFrame& frame, int64_t i) {
  return *static_cast<const XLA_FFI_Buffer*>(frame.args.args[i]);
}

inline const XLA_FFI_Buffer& result(const XLA_FFI_CallFrame& frame, int64_t i = 0) {
  return *static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[i]);
}

inline long elements_of(const XLA_FFI_Buffer& buffer) {
  long elements = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) elements *= buffer.dims[i];
  return elements;
}

}  // namespace kernels
