/* axonn: all public headers except philox.h, which is for kernels. A program may also include only those that
 * it uses. The groups below are ordered roughly from the lowest layer to the highest. */
#ifndef AXONN_AXONN_H
#define AXONN_AXONN_H

#include "axonn/base.h"    /* errors, log, files, random numbers */
#include "axonn/json.h"    /* JSON with numbers of any size */
#include "axonn/option.h"  /* tables of options */
#include "axonn/runtime.h" /* settings of the process (runtime.*) */
#include "axonn/trace.h"   /* metrics of a run, profiling events */

#include "axonn/comm.h"   /* communicators */
#include "axonn/dev.h"    /* devices, memory, kernels */
#include "axonn/grid.h"   /* the ranks as a grid; a rank's device and grid in one struct */
#include "axonn/tensor.h" /* arrays split over ranks; memory of activations */

#include "axonn/op.h"       /* operations on tensors */
#include "axonn/parallel.h" /* operations on split arrays; parameters */

#include "axonn/model.h" /* model families (gpt2, llama, …) */
#include "axonn/nn.h"    /* layers */
#include "axonn/optim.h" /* optimizers and schedules */
#include "axonn/pipe.h"  /* schedules of pipeline stages */

#include "axonn/chat.h"      /* conversations and their templates */
#include "axonn/ckpt.h"      /* safetensors and checkpoints */
#include "axonn/data.h"      /* token files, rows of training steps */
#include "axonn/tokenizer.h" /* byte-pair encoding */

#include "axonn/config.h" /* the configuration of a run */
#include "axonn/engine.h" /* training steps, runs, generation */

#endif
