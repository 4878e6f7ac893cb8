/* Calls jaxdelegate.litert.plugin from C without Python's headers: one binary for all versions. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

typedef void (*ReportError)(const char* message);

/* Filled in by jaxdelegate.litert.plugin. The functions acquire Python's global lock. */
static struct {
  void* (*create)(char** keys, char** values, int count, ReportError report);
  void (*destroy)(void* delegate);
} hooks;

/* Runs in __main__ without defining a name there. */
static const char kImport[] =
    "try:\n"
    "  __import__('jaxdelegate.litert.plugin', fromlist=['install']).install(%zu)\n"
    "except BaseException as error:\n"
    "  (lambda text: __import__('ctypes').memmove(%zu, text, len(text)))("
    "f'{error}'.encode()[:%zu] + bytes(1))\n";

/* Fills in `hooks`. Returns 0, or 1 with a reason in `why`. */
static int import_plugin(char* why, size_t size) {
  int (*is_initialized)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
  int (*run)(const char*) = (int (*)(const char*))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
  char code[sizeof kImport + 100];
  int state;

  if (!is_initialized || !ensure || !release || !run || !is_initialized()) {
    snprintf(why, size, "this delegate is written in Python, which does not run in this process");
    return 1;
  }
  snprintf(why, size, "jaxdelegate.litert.plugin could not be imported");
  snprintf(code, sizeof code, kImport, (size_t)&hooks, (size_t)why, size - 1);
  state = ensure();
  run(code);
  release(state);
  return hooks.create == NULL;
}

static void* create_delegate(char** keys, char** values, int count, ReportError report) {
  char why[512], message[600];
  if (!hooks.create && import_plugin(why, sizeof why)) {
    snprintf(message, sizeof message, "jaxdelegate: %s", why);
    if (report) report(message);
    return NULL;
  }
  return hooks.create(keys, values, count, report);
}

static void destroy_delegate(void* delegate) {
  if (delegate && hooks.destroy) hooks.destroy(delegate);
}
