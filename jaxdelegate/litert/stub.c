/* libjaxdelegate.so: the two functions that the stock load_delegate calls.
   Interface: delegates/external/external_delegate_interface.h. */

#include "plugin.h"

EXPORT void* tflite_plugin_create_delegate(char** keys, char** values, size_t count,
                                           ReportError report) {
  return create_delegate(keys, values, (int)count, report); /* the stock Python code passes an int */
}

EXPORT void tflite_plugin_destroy_delegate(void* delegate) { destroy_delegate(delegate); }
