// Macros that select the instruction set for which a file of kernels is compiled.
//
// Only functions between BEGIN_TARGET and END_TARGET may contain its instructions. Headers are
// included before, so inline functions are the same in every file, and it does not matter which copy
// the linker keeps. Tables of these functions are constants: loading the library runs no code.

#pragma once

#if !defined(__x86_64__)
#error "the kernels are for x86-64"
#endif

#if !defined(__clang__)
// GCC 12 warns about its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#define TARGET_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BEGIN_TARGET(features) \
  TARGET_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define END_TARGET TARGET_PRAGMA(clang attribute pop)
#else
#define BEGIN_TARGET(features) \
  TARGET_PRAGMA(GCC push_options) TARGET_PRAGMA(GCC target(features))
#define END_TARGET TARGET_PRAGMA(GCC pop_options)
#endif

// Whether the compiler knows the instructions.
#if defined(__clang__)
#define KNOWS_AVXVNNI (__clang_major__ >= 12)
#define KNOWS_AVX512BF16 (__clang_major__ >= 9)
#else
#define KNOWS_AVXVNNI (__GNUC__ >= 11)
#define KNOWS_AVX512BF16 (__GNUC__ >= 10)
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
