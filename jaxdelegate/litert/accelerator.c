/* libLiteRtGpuAccelerator.so: the library that LiteRT's CompiledModel loads from its runtime path if
   a GPU is requested. The tables of both sides begin with their size and version; they have this
   form in LiteRT >= 2.3.
   Interface: litert/c/internal/litert_accelerator_def.h, litert_runtime_context.h. */

#include "plugin.h"

#include <stdbool.h>

enum { kOk = 0, kRuntimeFailure = 3 };    /* LiteRtStatus */
enum { kGpu = 1 << 1 };                   /* LiteRtHwAcceleratorSet */

typedef struct {
  uint16_t size, major, minor, reserved;
} Header;

/* The used part of LiteRtRuntimeContext. */
typedef struct {
  Header header;
  void* others[17];
  int (*wrap_delegate)(void* delegate, void (*destroy)(void*), void** wrapper);
} Runtime;

static int get_name(void* accelerator, const char** name) {
  (void)accelerator;
  *name = "jaxdelegate";
  return kOk;
}

static int get_version(void* accelerator, int version[3]) {
  (void)accelerator;
  version[0] = 1;
  version[1] = version[2] = 0;
  return kOk;
}

static int get_hardware_support(void* accelerator, int* hardware) {
  (void)accelerator;
  *hardware = kGpu;
  return kOk;
}

static int compiles_itself(void* accelerator, bool* result) {
  (void)accelerator;
  *result = true;
  return kOk;
}

static void print(const char* message) { fprintf(stderr, "ERROR: %s\n", message); }

static int wrap(Runtime* runtime, void* environment, void* accelerator, void* options,
                void** wrapper) {
  void* delegate;
  (void)environment, (void)accelerator, (void)options;
  if (runtime->header.major != 1 || runtime->header.size < sizeof(Runtime)) {
    print("jaxdelegate: this version of LiteRT's CompiledModel is not supported");
    return kRuntimeFailure;
  }
  delegate = create_delegate(NULL, NULL, 0, print);
  return delegate ? runtime->wrap_delegate(delegate, destroy_delegate, wrapper) : kRuntimeFailure;
}

/* LiteRtAcceleratorDef, without metrics and custom tensor buffers. */
EXPORT struct {
  Header header;
  int (*get_name)(void*, const char**);
  int (*get_version)(void*, int[3]);
  int (*get_hardware_support)(void*, int*);
  int (*compiles_itself)(void*, bool*);
  int (*create_delegate)(Runtime*, void*, void*, void*, void**);
  void* metrics[2];
  Header buffers;
  void* buffer_functions[16];
} LiteRtAcceleratorImpl = {
    .header = {.size = 200, .major = 1},
    .get_name = get_name,
    .get_version = get_version,
    .get_hardware_support = get_hardware_support,
    .compiles_itself = compiles_itself,
    .create_delegate = wrap,
    .buffers = {.size = 136, .major = 1},
};

typedef char size_is_right[sizeof LiteRtAcceleratorImpl == 200 ? 1 : -1];
