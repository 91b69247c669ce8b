/* Runtime settings of a run (runtime.h). */
#include "axonn/runtime.h"
#include "engine/train.h"

ax_status ax_run_set_runtime(ax_run *run) { return ax_runtime_set_given(run->config->set); }
