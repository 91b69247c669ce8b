/* Decides which files of a model directory, besides the weights, are copied with the model. */
#include "engine/train.h"

#include <fnmatch.h>
#include <string.h>

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
