/* Decides which files of a model directory, besides the weights, are copied with the model, and says which of
 * them are links to files elsewhere. */
#include "infer/beside.h"

#include "axonn/base.h"

#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool ax_beside_copied(const char *name)
{
    /* not copied: weights in any format and their indices, and the state and logs that trainers save */
    static const char *const patterns[] = {"*.safetensors",
                                           "*.index.json",
                                           "*.bin",
                                           "*.pt",
                                           "*.pth",
                                           "*.ckpt",
                                           "*.h5",
                                           "*.msgpack",
                                           "*.gguf",
                                           "*.onnx",
                                           "*.ot",
                                           "*.npz",
                                           "*.tflite",
                                           "training",
                                           "trainer_state.json",
                                           "events.out.tfevents.*"};
    for (size_t i = 0; i < AX_COUNT(patterns); i++)
        if (!fnmatch(patterns[i], name, 0))
            return false;
    return name[0] != '.';
}

/* Cuts the last name off an absolute path without links. Returns the name. */
static const char *cut_name(char *path)
{
    char *slash = strrchr(path, '/');
    *slash = 0;
    return slash + 1;
}

/* Returns true if `target` is inside directory `dir` or, if `dir` is a snapshot in the hub's cache
 * (models--ORG--NAME/snapshots/REVISION), in that model's folder: there all files are links to ../../blobs/.
 * Both paths are absolute and without links. */
static bool is_inside(const char *target, const char *dir)
{
    char own[PATH_MAX], above[PATH_MAX];
    snprintf(own, sizeof own, "%s", dir);
    snprintf(above, sizeof above, "%s", dir);
    cut_name(above);
    if (above[0] && !strcmp(cut_name(above), "snapshots") && above[0])
        snprintf(own, sizeof own, "%s", above);
    size_t n = strlen(own);
    return !strncmp(target, own, n) && target[n] == '/';
}

void ax_beside_say_link(const char *dir, const char *name)
{
    char *path, real[PATH_MAX], target[PATH_MAX];
    struct stat info;
    if (ax_path_join(dir, name, &path) != AX_OK)
        return;
    if (!lstat(path, &info) && S_ISLNK(info.st_mode) && realpath(dir, real) && realpath(path, target) &&
        !is_inside(target, real))
        ax_log(AX_LOG_WARN,
               "%s is a link to %s, which is not in the model's directory: its content is copied", path,
               target);
    free(path);
}
