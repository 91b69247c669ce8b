/* Loads the CUDA backend from a library of its own, libaxonn_cuda.so, so that everything else runs on a host
 * without CUDA. libaxonn_cuda.so is loaded when the backend is first asked for, from the directory that the
 * setting runtime.plugins names. By default (auto) that is the directory of the library or program that
 * contains this file.
 *
 * The plugin must be of the same build as this file: of the same commit, and of the same interface. The
 * interface is a hash of the headers that plugin and library share (CMakeLists.txt). It is compared too,
 * because two source trees at one commit may have different changes that are not committed. */
#include "dev/backend.h"

#include "axonn/runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const ax_device_ops *table; /* the plugin's table of functions; NULL if the plugin cannot be used */
static char why_not[1024];         /* why the plugin cannot be used */

/* Returns the path of the library or program that contains this file, NULL if it is unknown. */
static const char *own_path(void)
{
    Dl_info self;
    return dladdr((const void *)&table, &self) ? self.dli_fname : NULL;
}

/* Writes to `out` the path that libaxonn_cuda.so has in directory `dir`, or, if `dir` is NULL, in the
 * directory of the library or program that contains this file. If the latter directory is unknown, writes the
 * file name alone, for which dlopen searches the system's directories. */
static void plugin_path(const char *dir, char *out, size_t size)
{
    const char *own = own_path(), *slash = own ? strrchr(own, '/') : NULL;
    if (dir)
        snprintf(out, size, "%s/libaxonn_cuda.so", dir);
    else
        snprintf(out, size, "%.*slibaxonn_cuda.so", slash ? (int)(slash + 1 - own) : 0, slash ? own : "");
}

/* Returns true if the plugin is of the same build as this file. If not, writes to why_not why the plugin
 * cannot be used. */
static bool same_build(const char *path, const char *commit, const char *interface)
{
    const char *own = own_path();
    if (!strcmp(commit, ax_commit()) && !strcmp(interface, AXONN_INTERFACE))
        return true;
    snprintf(
        why_not, sizeof why_not,
        "%.300s was built from commit %.40s with interface %.16s, but %.300s from commit %.40s with "
        "interface %s: build both from the same files, or set runtime.plugins to the folder of the plugin "
        "that was built with this program",
        path, commit, interface, own ? own : "axonn", ax_commit(), AXONN_INTERFACE);
    return false;
}

static void load(void)
{
    const char *dir;
    char path[4096];
    if (ax_runtime_fix(AX_RUNTIME_PLUGINS, &dir) != AX_OK || !strcmp(dir, "auto"))
        dir = NULL;
    plugin_path(dir, path, sizeof path);
    if (strchr(path, '/') && !ax_path_exists(path)) {
        snprintf(why_not, sizeof why_not, "there is no %.400s: %s%s", path,
                 dir ? ax_runtime_source(AX_RUNTIME_PLUGINS)
                     : "axonn was built without CUDA, or its plugin is not installed",
                 dir ? " must name the directory of this file" : "");
        return;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *const *commit = library ? dlsym(library, "ax_plugin_commit") : NULL;
    const char *const *interface = library ? dlsym(library, "ax_plugin_interface") : NULL;
    const ax_device_ops *found = library ? dlsym(library, "ax_plugin_cuda") : NULL;
    if (!library)
        snprintf(why_not, sizeof why_not, "the CUDA plugin cannot be loaded: %.450s", dlerror());
    else if (!commit || !interface || !found)
        snprintf(why_not, sizeof why_not,
                 "%.400s is not a plugin of this version of axonn: install the one that was built with it",
                 path);
    else if (same_build(path, *commit, *interface))
        table = found;
}

static const ax_device_ops *cuda_table(void)
{
    pthread_once(&once, load);
    return table;
}

static const char *cuda_absent(void) { return cuda_table() ? NULL : why_not; }

const ax_device_ops ax_backend_cuda = {
    .name = "cuda",
    .help = "an NVIDIA GPU: kernels of axonn, cuBLASLt for matmuls, cuDNN (if installed) for attention",
    .plugin = cuda_table,
    .absent = cuda_absent,
};
