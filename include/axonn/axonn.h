/* axonn: all public headers except philox.h, which is for kernels. A program may also include only those that
 * it uses. The groups below say for whom a header is. */
#ifndef AXONN_AXONN_H
#define AXONN_AXONN_H

/* For all: errors, settings, files. */
#include "axonn/base.h"    /* errors, log, files, random numbers */
#include "axonn/json.h"    /* JSON with numbers of any size */
#include "axonn/option.h"  /* tables of options */
#include "axonn/runtime.h" /* settings of the process (runtime.*) */
#include "axonn/trace.h"   /* metrics of a run, profiling events */

/* For programs that train, evaluate and generate. */
#include "axonn/chat.h"      /* conversations and their templates */
#include "axonn/ckpt.h"      /* safetensors and checkpoints */
#include "axonn/config.h"    /* the configuration of a run */
#include "axonn/data.h"      /* token files, rows of training steps */
#include "axonn/engine.h"    /* training steps and evaluations of a model in memory */
#include "axonn/grid.h"      /* the ranks as a grid; a rank's device and grid in one struct */
#include "axonn/infer.h"     /* model directories, generation, conversion */
#include "axonn/machine.h"   /* descriptions of machines, times on them */
#include "axonn/model.h"     /* model families (gpt2, llama, …) */
#include "axonn/tokenizer.h" /* byte-pair encoding */
#include "axonn/train.h"     /* training runs */

/* For programs that build layers, models and training loops of their own. */
#include "axonn/nn.h"       /* layers */
#include "axonn/op.h"       /* operations on tensors */
#include "axonn/optim.h"    /* optimizers and schedules */
#include "axonn/parallel.h" /* operations on split arrays; parameters */
#include "axonn/pipe.h"     /* schedules of pipeline stages */
#include "axonn/pipeline.h" /* runs a stage's tasks and messages in the order of a schedule */
#include "axonn/tensor.h"   /* arrays split over ranks; memory of activations */

/* For whoever writes a backend: of devices, or of communicators. */
#include "axonn/clock.h"   /* the time of a planned run */
#include "axonn/comm.h"    /* communicators */
#include "axonn/dev.h"     /* devices, memory */
#include "axonn/kernels.h" /* the kernels of a device, and their arguments */

#endif
