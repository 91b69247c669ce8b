/* A plugin of another build: of the same commit, but with another interface (test_plugin.c). */
#include "axonn/dev.h"

extern const char *const ax_plugin_commit, *const ax_plugin_interface;
extern const ax_device_ops ax_plugin_cuda;

const char *const ax_plugin_commit = AXONN_COMMIT, *const ax_plugin_interface = "0123456789abcdef";
const ax_device_ops ax_plugin_cuda = {.name = "other plugin"};
