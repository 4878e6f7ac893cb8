// The part of XLA's foreign function interface that the kernels use: API version 0.3, whose structs
// only grow at their end (xla/ffi/api/c_api.h of jaxlib). Declared here, so that the library is
// built without jaxlib and serves every version of it that knows this API.

#pragma once

#include <cstddef>
#include <cstdint>

namespace xla_ffi {

constexpr int kMajor = 0, kMinor = 3;

enum DataType : int {
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kF32 = 11,
  kF64 = 12,
  kBf16 = 16,
};
enum Stage : int { kExecute = 3 };
enum AttributeType : int { kArrayAttribute = 1 };
enum ErrorCode : int { kInvalidArgument = 3, kResourceExhausted = 8 };
enum ExtensionType : int { kMetadata = 1 };

struct Error;
struct Context;

struct Extension {
  size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int major, minor;
};

struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Array {
  DataType dtype;
  size_t size;
  void* data;
};

struct Buffers {  // arguments, and results
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int* types;
  Buffer** buffers;
};

struct Attributes {  // sorted by name
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  AttributeType* types;
  void** names;
  void** values;
};

struct ErrorArgs {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct ErrorHandle {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};

struct ScheduleArgs {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  void (*task)(void*);
  void* data;
};

struct ThreadCountArgs {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  int64_t* count;
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  void* internal;
  Error* (*create_error)(ErrorArgs*);
  void* get_message;
  void (*destroy_error)(ErrorHandle*);
  void* others[8];  // handlers, streams, types, states, device memory
  Error* (*schedule)(ScheduleArgs*);
  Error* (*thread_count)(ThreadCountArgs*);
};

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers arguments, results;
  Attributes attributes;
};

}  // namespace xla_ffi
