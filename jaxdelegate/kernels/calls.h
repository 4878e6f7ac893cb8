// What every function that XLA calls does with its frame.

#pragma once

#include <algorithm>

#include "xla_ffi.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace kernels {

inline xla_ffi::Error* refused(const xla_ffi::CallFrame& frame, const char* why,
                               xla_ffi::ErrorCode code = xla_ffi::kInvalidArgument) {
  xla_ffi::ErrorArgs args{sizeof args, nullptr, why, code};
  return frame.api->create_error(&args);
}

// XLA asks for the version once, when the handler is registered.
inline bool answers_metadata(const xla_ffi::CallFrame& frame) {
  const xla_ffi::Extension* extension = frame.extensions;
  if (extension == nullptr || extension->type != xla_ffi::kMetadata) return false;
  auto* metadata = reinterpret_cast<const xla_ffi::MetadataExtension*>(extension)->metadata;
  metadata->version.major = xla_ffi::kMajor;
  metadata->version.minor = std::min(xla_ffi::kMinor, frame.api->version.minor);
  metadata->traits = 0;
  return true;
}

// By the name that the library exports; chains call it by its number.
struct Kernel {
  const char* name;
  xla_ffi::Error* (*run)(xla_ffi::CallFrame*);
};
extern const Kernel kKernels[];
extern const long kKernelCount;

inline long elements_of(const xla_ffi::Buffer& buffer) {
  long elements = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) elements *= buffer.dims[i];
  return elements;
}

}  // namespace kernels
