// How a file of kernels says which instruction set it is compiled for.
//
// Only functions between BEGIN_TARGET and END_TARGET may hold its instructions. What headers define
// stands outside: it is the same in every file, so that it does not matter whose copy of an inline
// function the linker keeps. Tables of these functions are constants, which nothing has to compute
// when the library is loaded.

#pragma once

#if !defined(__x86_64__)
#error "the kernels are for x86-64"
#endif

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 finds its own intrinsics guilty
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
