// Fast copies of few bytes: a call of memcpy takes longer than copying a pixel of few channels.

#pragma once

#include <cstring>

namespace kernels {

template <int BYTES>
struct Bytes {
  char values[BYTES];
};

// Copies both ends, which overlap.
template <int BYTES>
inline void copy_ends(void* to, const void* from, long bytes) {
  Bytes<BYTES> head, tail;
  memcpy(&head, from, BYTES);
  memcpy(&tail, static_cast<const char*>(from) + bytes - BYTES, BYTES);
  memcpy(to, &head, BYTES);
  memcpy(static_cast<char*>(to) + bytes - BYTES, &tail, BYTES);
}

template <class T>
inline void copy(T* to, const T* from, long count) {
  const long bytes = count * sizeof(T);
  if (bytes > 128) {
    memcpy(to, from, bytes);
  } else if (bytes >= 64) {
    copy_ends<64>(to, from, bytes);
  } else if (bytes >= 32) {
    copy_ends<32>(to, from, bytes);
  } else if (bytes >= 16) {
    copy_ends<16>(to, from, bytes);
  } else if (sizeof(T) <= 2 && bytes >= 8) {
    copy_ends<8>(to, from, bytes);
  } else if (sizeof(T) <= 2 && bytes >= 4) {
    copy_ends<4>(to, from, bytes);
  } else {
    for (long i = 0; i < count; ++i) to[i] = from[i];
  }
}

}  // namespace kernels
