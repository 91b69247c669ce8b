/* See emulated.h. */
#include "support/emulated.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void *emulated_function(const char *name)
{
    char path[4096];
    const char *plugins = getenv("AXONN_PLUGINS");
    snprintf(path, sizeof path, "%s/libaxonn_cuda.so", plugins ? plugins : "");
    void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return plugin ? dlsym(plugin, name) : NULL;
}
