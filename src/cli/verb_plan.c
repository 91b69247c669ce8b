/* axonn plan: what a training run will need, without starting it. One process plans for all ranks. */
#include "axonn/machine.h"
#include "axonn/runtime.h"
#include "axonn/train.h"
#include "launch.h"
#include "plan_search.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1 << 20 };

typedef struct args {
    cli_config_args common; /* common.launch.ranks: the ranks to plan for */
    bool json;
    char *machine;
    int64_t tokens, top;
    bool explain;
} args;

static const ax_option options[] = {
    {"CONFIG", AX_OPT_PATH, offsetof(args, common.path), .required = true, .meta = "CONFIG.yaml",
     .help = "YAML file with the configuration of the run"},
    {"KEY=VALUE", AX_OPT_STRINGS, offsetof(args, common.overrides),
     .help = "configuration keys with values, e.g. grid.x=2; they override those of the file"},
    {"ranks", AX_OPT_INT, offsetof(args, common.launch.ranks), "0", "[0, 1048576]", .meta = "N",
     .help = "number of ranks to plan for, whatever this machine has; 0: the product of the grid's sizes"},
    {"machine", AX_OPT_PATH, offsetof(args, machine), .meta = "NAME|FILE",
     .help =
         "description of the machine to plan for, one that comes with axonn (alps, frontier, h100x8, h200x8, "
         "perlmutter, summit) or a file; default: runtime.machine"},
    {"tokens", AX_OPT_INT, offsetof(args, tokens), "0", "[0, 1000000000000000000]", .meta = "N",
     .help = "with --machine: also say how long training on N tokens takes; 0: does not"},
    {"top", AX_OPT_INT, offsetof(args, top), "0", "[0, 50]", .meta = "K",
     .help = "with --machine: search the layout of --ranks ranks that takes the least time, and print the K "
             "best; "
             "keys that are given stay. 0: one if grid is auto, else none"},
    {"explain", AX_OPT_BOOL, offsetof(args, explain), "false",
     .help = "with --top or grid=auto: say why the first is the first"},
    {"json", AX_OPT_BOOL, offsetof(args, json), "false", .help = "print the plan as one JSON object"},
};

/* The plan of the whole run: of one rank of each pipeline stage. */
typedef struct forecast {
    const ax_train_plan *run;
    const ax_machine *machine; /* NULL: none is described */
    int stages, largest;       /* largest: the stage whose rank needs the most device memory */
    ax_engine_plan *stage;
    int64_t parameters, tokens; /* of the model; of a step */
    double flops;               /* of a step, all ranks */
    int64_t
        micro_batch; /* the largest within the limit, with all other keys as they are; 0: there is no limit */
    bool own_limit;  /* the limit is the memory of the machine's devices */
    char untimed[512]; /* why the time of a step is not known: rates that the machine lacks, or keys of the
                          run; "" */
    ax_step_time time; /* of a step; seconds are 0 if it is not known */
    ax_stage_times *of_stage; /* [stages]; NULL: there is no machine */
    int64_t train_tokens;     /* --tokens */
    int64_t wire;             /* bytes that a rank sends to other nodes in a step, the most; < 0: not known */
    ax_axes_bytes *sent; /* for each set of axes what the rank that sends most along it sends in a step */
    int n_sent;
} forecast;

/* ---- making ----------------------------------------------------------------------------------------- */

/* Enters what a rank of one stage sends. */
static void add_sent(forecast *f, const ax_engine_plan *stage)
{
    for (int i = 0; i < stage->n_sent; i++) {
        int k = 0;
        while (k < f->n_sent && strcmp(f->sent[k].axes, stage->sent[i].axes) != 0)
            k++;
        if (k == f->n_sent)
            f->sent[f->n_sent++] = stage->sent[i];
        f->sent[k].bytes = ax_max(f->sent[k].bytes, stage->sent[i].bytes);
    }
    f->wire = ax_max(f->wire, stage->wire);
}

static ax_status make(const ax_trainer *trainer, forecast *f)
{
    const ax_train_plan *p = f->run = ax_trainer_plan(trainer);
    const ax_engine_options *o = &p->options;
    int64_t matmul;
    int sets = 0;
    AX_TRY(ax_calloc((size_t)p->grid.of[AX_PIPE], sizeof *f->stage, &f->stage));
    for (; f->stages < p->grid.of[AX_PIPE]; f->stages++) {
        ax_engine_plan *stage = &f->stage[f->stages];
        AX_TRY(ax_trainer_plan_stage(trainer, f->stages, stage));
        sets += stage->n_sent;
        if (ax_memory_total(&stage->memory) > ax_memory_total(&f->stage[f->largest].memory))
            f->largest = f->stages;
    }
    AX_TRY(ax_calloc((size_t)sets, sizeof *f->sent, &f->sent));
    f->wire = -1;
    for (int s = 0; s < f->stages; s++)
        add_sent(f, &f->stage[s]);
    ax_model_config_params(o->model, &f->parameters, &matmul);
    f->tokens = o->global_batch * o->seq_len;
    f->flops = ax_model_config_flops_per_token(o->model, o->seq_len) * (double)f->tokens;
    return AX_OK;
}

/* Sets *need to the bytes of device memory of the rank that needs the most. */
static ax_status find_need(const ax_trainer *trainer, size_t *need)
{
    *need = 0;
    for (int s = 0; s < ax_trainer_plan(trainer)->grid.of[AX_PIPE]; s++) {
        ax_engine_plan stage;
        AX_TRY(ax_trainer_plan_stage(trainer, s, &stage));
        *need = ax_max(*need, ax_memory_total(&stage.memory));
        ax_engine_plan_fini(&stage);
    }
    return AX_OK;
}

/* Plans the run with this micro-batch, and enters it if all ranks fit within `limit`; else sets *too_large.
 * Does nothing if the run cannot have it, because of the schedule of a pipeline. */
static ax_status try_micro_batch(ax_comm *world, ax_config *config, int64_t micro_batch, size_t limit,
                                 forecast *f, bool *too_large)
{
    ax_trainer *trainer;
    size_t need = 0;
    config->train.micro_batch = micro_batch;
    ax_status status = ax_trainer_create(world, config, &trainer);
    if (status == AX_OK)
        status = find_need(trainer, &need);
    ax_trainer_destroy(&trainer);
    *too_large = status == AX_ERR_MEMORY || need > limit;
    if (status == AX_OK && !*too_large)
        f->micro_batch = micro_batch;
    return status == AX_ERR_USAGE || status == AX_ERR_MEMORY ? AX_OK : status;
}

/* Checks the limit of a rank (runtime.device_memory) for all stages, and finds the largest micro-batch within
 * it: those that divide a rank's rows, from the planned one on, because larger ones need more. */
static ax_status keep_limit(ax_comm *world, ax_config *config, forecast *f)
{
    const ax_train_plan *p = f->run;
    const int64_t given = config->train.micro_batch,
                  rows = p->options.global_batch /
                         ax_strategy_ranks(p->parallel.strategy, AX_ROLE_BATCH, p->grid);
    const size_t need = ax_memory_total(&f->stage[f->largest].memory);
    char most[32], text[32];
    size_t limit;
    bool too_large = false;
    AX_TRY(ax_ctx_find_limit(&limit));
    if (!limit)
        return AX_OK;
    AX_CHECK(
        need <= limit, AX_ERR_MEMORY,
        "a rank of stage %d needs %s (%zu bytes) of device memory but runtime.device_memory allows only %s "
        "(%zu "
        "bytes): use a smaller train.micro_batch, train.recompute: full, more stages (grid.pipe), or another "
        "pipe.cut",
        f->largest, ax_format_bytes((double)need, text), need, ax_format_bytes((double)limit, most), limit);
    ax_status status = AX_OK;
    f->micro_batch = given;
    if (!ax_config_given(config, ax_runtime_options[AX_RUNTIME_LOG].key))
        ax_log_set_level(AX_LOG_ERROR); /* the warnings of the other plans are those of the first */
    for (int64_t m = given + 1; m <= rows && !too_large && status == AX_OK; m++)
        if (rows % m == 0)
            status = try_micro_batch(world, config, m, limit, f, &too_large);
    config->train.micro_batch = given;
    return status;
}

/* Checks that the host memory of a node of the machine is enough for its ranks, if it is described. */
static ax_status check_host(const forecast *f)
{
    const ax_machine *m = f->machine;
    if (!m || !m->host.memory)
        return AX_OK;
    const int64_t ranks = ax_min(ax_comm_size(f->run->ranks), m->ranks_per_node);
    double need = 0;
    char most[32], text[32];
    for (int s = 0; s < f->stages; s++) {
        const ax_memory *memory = &f->stage[s].memory;
        double rank = (double)ax_memory_on(memory, AX_MEMORY_ON_HOST) +
                      (m->device.host_access ? (double)ax_memory_total(memory) : 0);
        need = rank * (double)ranks > need ? rank * (double)ranks : need;
    }
    AX_CHECK(
        need <= (double)m->host.memory, AX_ERR_MEMORY,
        "the %lld ranks of a node need up to %s of host memory but a node of machine %s has only %s: offload "
        "less (offload.optimizer), or plan for a machine with fewer ranks of a node",
        (long long)ranks, ax_format_bytes(need, text), m->name,
        ax_format_bytes((double)m->host.memory, most));
    return AX_OK;
}

/* Finds how long a step takes on the machine; or why that is not known. */
static ax_status find_time(const ax_trainer *trainer, forecast *f)
{
    const ax_train_plan *p = f->run;
    if (!f->machine)
        return AX_OK;
    const ax_prices prices = ax_prices_of(f->machine);
    AX_TRY(ax_calloc((size_t)f->stages, sizeof *f->of_stage, &f->of_stage));
    ax_status status = ax_machine_check_times(f->machine, p->compute, ax_comm_size(p->ranks));
    if (status == AX_OK)
        status = ax_trainer_time_step(trainer, &prices, NULL, f->of_stage, &f->time);
    if (status != AX_ERR_USAGE)
        return status;
    f->time = (ax_step_time){0};
    snprintf(f->untimed, sizeof f->untimed, "%s", ax_error_message());
    return AX_OK;
}

static bool is_timed(const forecast *f) { return f->time.seconds > 0; }

static void forecast_fini(forecast *f)
{
    for (int s = 0; s < f->stages; s++)
        ax_engine_plan_fini(&f->stage[s]);
    for (int s = 0; s < f->stages && f->of_stage; s++)
        ax_stage_times_fini(&f->of_stage[s]);
    free(f->of_stage);
    free(f->stage);
    free(f->sent);
}

/* ---- printing --------------------------------------------------------------------------------------- */

static json_t *sent_json(const ax_axes_bytes *sent, int n)
{
    json_t *object = json_object();
    for (int i = 0; i < n && object; i++)
        json_object_set_new(object, sent[i].axes, json_integer((json_int_t)sent[i].bytes));
    return object;
}

static json_t *memory_json(const ax_memory *m, ax_memory_place place)
{
    json_t *object = json_object();
    for (int i = 0; i < AX_MEMORY_CLASSES && object; i++)
        if (ax_memory_where((ax_memory_class)i) == place)
            json_object_set_new(object, ax_memory_name((ax_memory_class)i),
                                json_integer((json_int_t)m->bytes[i]));
    return object;
}

static json_t *exposed_json(const ax_stage_times *t)
{
    json_t *object = json_object();
    for (int i = 0; i < t->n_exposed && object; i++)
        json_object_set_new(object, t->exposed[i].axes, cli_json_number(t->exposed[i].seconds * 1e3));
    return object;
}

static json_t *stage_json(const forecast *f, int s)
{
    const ax_engine_plan *stage = &f->stage[s];
    json_t *json = json_pack(
        "{s:I, s:o, s:o, s:o, s:o}", "memory", (json_int_t)ax_memory_total(&stage->memory), "device",
        memory_json(&stage->memory, AX_MEMORY_ON_DEVICE), "host",
        memory_json(&stage->memory, AX_MEMORY_ON_HOST), "disk",
        memory_json(&stage->memory, AX_MEMORY_ON_DISK), "comm_bytes", sent_json(stage->sent, stage->n_sent));
    if (json && is_timed(f)) {
        json_object_set_new(json, "kernels_ms", cli_json_number(f->of_stage[s].computed * 1e3));
        json_object_set_new(json, "comm_exposed_ms", exposed_json(&f->of_stage[s]));
    }
    return json;
}

/* Adds the time of a step: null if the machine lacks rates, nothing without a machine. */
static void add_time_json(json_t *json, const forecast *f)
{
    if (json && f->machine && !is_timed(f))
        json_object_set_new(json, "step_ms", json_null());
    if (!json || !is_timed(f))
        return;
    json_object_set_new(json, "step_ms", cli_json_number(f->time.seconds * 1e3));
    json_object_set_new(json, "pipe_wait_ms", cli_json_number(f->time.bubble * 1e3));
    json_object_set_new(json, "tokens_per_s", cli_json_number((double)f->tokens / f->time.seconds));
    if (f->train_tokens)
        json_object_set_new(json, "seconds",
                            cli_json_number((double)f->train_tokens / (double)f->tokens * f->time.seconds));
}

static ax_status print_json(const forecast *f)
{
    const ax_train_plan *p = f->run;
    char model[96], grid[96];
    json_t *stages = json_array();
    const char *machine = f->machine ? f->machine->name : NULL;
    for (int s = 0; s < f->stages && stages; s++)
        json_array_append_new(stages, stage_json(f, s));
    ax_train_describe(p->options.model, p->grid, model, grid);
    json_t *json =
        json_pack("{s:s, s:s?, s:I, s:s, s:i, s:s, s:s, s:I, s:o, s:I, s:I, s:I, s:f, s:o, s:o}", "model",
                  model, "machine", machine, "parameters", (json_int_t)f->parameters, "grid", grid, "ranks",
                  ax_comm_size(p->ranks), "device", p->config->device, "precision", ax_dtype_name(p->compute),
                  "micro_batch", (json_int_t)p->options.micro_batch, "largest_micro_batch",
                  f->micro_batch ? json_integer((json_int_t)f->micro_batch) : json_null(), "recompute",
                  (json_int_t)p->options.recompute, "mem_planned",
                  (json_int_t)ax_memory_total(&f->stage[f->largest].memory), "tokens", (json_int_t)f->tokens,
                  "flops", f->flops, "comm_bytes", sent_json(f->sent, f->n_sent), "stages", stages);
    if (json && f->wire >= 0)
        json_object_set_new(json, "comm_wire_bytes", json_integer((json_int_t)f->wire));
    add_time_json(json, f);
    return cli_print_json(json);
}

static void print_memory(const ax_memory *m, ax_memory_place place, const char *where)
{
    char text[512], size[32];
    if (ax_memory_on(m, place))
        printf("  %-7s %10s: %s\n", where, ax_format_bytes((double)ax_memory_on(m, place), size),
               ax_memory_print(m, place, text));
}

/* Prints the time of a step, and of which the stage that computes longest waits for collectives. */
static void print_time(const forecast *f, const ax_machine *machine)
{
    const ax_train_plan *p = f->run;
    const double peak = ax_machine_gemm_rate(machine, p->compute) * ax_comm_size(p->ranks);
    const ax_stage_times *t = f->of_stage;
    char text[32];
    for (int s = 1; s < f->stages; s++)
        t = f->of_stage[s].computed > t->computed ? &f->of_stage[s] : t;
    printf("time of a step: %s, %.4g tokens/s", ax_format_seconds(f->time.seconds, text),
           (double)f->tokens / f->time.seconds);
    if (peak > 0)
        printf(", %.1f %% of the rate of GEMMs", 100 * f->flops / f->time.seconds / peak);
    printf("; kernels %s", ax_format_seconds(t->computed, text));
    for (int i = 0; i < t->n_exposed; i++)
        printf(", waiting along %s %s", t->exposed[i].axes, ax_format_seconds(t->exposed[i].seconds, text));
    if (f->stages > 1)
        printf(", for other stages %s", ax_format_seconds(f->time.bubble, text));
    printf("\n");
    if (f->train_tokens)
        printf("%lld tokens: %s\n", (long long)f->train_tokens,
               ax_format_seconds((double)f->train_tokens / (double)f->tokens * f->time.seconds, text));
}

static ax_status print_text(const forecast *f)
{
    const ax_train_plan *p = f->run;
    const int ranks = ax_comm_size(p->ranks);
    char model[96], grid[96], size[32];
    ax_train_describe(p->options.model, p->grid, model, grid);
    printf("%s, %.1f M parameters, %s on %s, %d rank%s: %s\n", model, (double)f->parameters / 1e6,
           ax_dtype_name(p->compute), p->config->device, ranks, ranks == 1 ? "" : "s", grid);
    if (f->machine)
        printf("machine: %s; nodes: %lld, ranks of a node: %lld, memory of a device: %s\n", f->machine->name,
               (long long)f->machine->nodes, (long long)f->machine->ranks_per_node,
               ax_format_bytes((double)f->machine->device.memory, size));
    for (int s = 0; s < f->stages; s++) {
        if (f->stages > 1)
            printf("memory of a rank of stage %d%s\n", s, s == f->largest ? ", the most" : "");
        else
            printf("memory of a rank\n");
        print_memory(&f->stage[s].memory, AX_MEMORY_ON_DEVICE, "device");
        print_memory(&f->stage[s].memory, AX_MEMORY_ON_HOST, "host");
        print_memory(&f->stage[s].memory, AX_MEMORY_ON_DISK, "disk");
    }
    printf(
        "a step: %lld rows of %lld tokens, %lld a micro-batch; %.3g floating-point operations, %.3g a rank\n",
        (long long)p->options.global_batch, (long long)p->options.seq_len, (long long)p->options.micro_batch,
        f->flops, f->flops / ranks);
    if (f->micro_batch)
        printf("largest train.micro_batch within %s: %lld\n",
               f->own_limit ? "the machine's device memory" : "runtime.device_memory",
               (long long)f->micro_batch);
    for (int i = 0; i < f->n_sent; i++)
        printf("%s%s along %s%s", i ? ", " : "sent by a rank in a step, at most: ",
               ax_format_bytes((double)f->sent[i].bytes, size), f->sent[i].axes,
               i + 1 < f->n_sent ? "" : "\n");
    if (f->wire >= 0 && f->n_sent)
        printf("of that to other nodes, at most: %s\n", ax_format_bytes((double)f->wire, size));
    if (f->machine && is_timed(f))
        print_time(f, f->machine);
    else if (f->machine)
        printf("no time of a step: %s\n", f->untimed);
    return AX_OK;
}

/* ---- the verb --------------------------------------------------------------------------------------- */

/* Plans as rank 0 of a world whose other ranks do not exist. The log of a run's start has what is printed
 * here, so only its warnings are shown, unless the user gave a level. */
static ax_status plan(ax_comm *world, ax_config *config, const args *a, const ax_machine *machine,
                      bool own_limit)
{
    ax_trainer *trainer;
    forecast f = {.machine = machine, .own_limit = own_limit, .train_tokens = a->tokens};
    if (!ax_config_given(config, ax_runtime_options[AX_RUNTIME_LOG].key))
        ax_log_set_level(AX_LOG_WARN);
    ax_status status = ax_trainer_create(world, config, &trainer);
    if (status == AX_OK)
        status = make(trainer, &f);
    if (status == AX_OK)
        status = keep_limit(world, config, &f);
    if (status == AX_ERR_MEMORY && own_limit)
        ax_error_context("machine %s, whose device memory is taken for runtime.device_memory", machine->name);
    if (status == AX_OK)
        status = check_host(&f);
    if (status == AX_OK)
        status = find_time(trainer, &f);
    if (status == AX_OK)
        status = a->json ? print_json(&f) : print_text(&f);
    forecast_fini(&f);
    ax_trainer_destroy(&trainer);
    return status;
}

/* Opens the description that --machine or runtime.machine names; *out is NULL without one. */
static ax_status open_machine(const args *a, ax_machine **out)
{
    const char *name;
    *out = NULL;
    if (a->machine) /* advice about memory names times on it */
        AX_TRY(ax_runtime_set(AX_RUNTIME_MACHINE, a->machine));
    AX_TRY(ax_runtime_get(AX_RUNTIME_MACHINE, &name));
    if (!strcmp(name, ax_runtime_options[AX_RUNTIME_MACHINE].preset))
        return AX_OK;
    return ax_machine_open(name, out);
}

/* Makes the memory of the machine's devices the limit of a rank, unless runtime.device_memory is a lower one.
 * Sets *limits to whether it did. */
static ax_status limit_memory(const ax_machine *m, bool *limits)
{
    size_t limit;
    char bytes[32];
    AX_TRY(ax_ctx_find_limit(&limit));
    *limits = !limit || limit > (size_t)m->device.memory;
    snprintf(bytes, sizeof bytes, "%lld", (long long)m->device.memory);
    return *limits ? ax_runtime_set(AX_RUNTIME_DEVICE_MEMORY, bytes) : AX_OK;
}

/* Gives nodes the ranks that the machine's have. */
static ax_status set_nodes(const ax_machine *m)
{
    char ranks[32];
    snprintf(ranks, sizeof ranks, "%lld", (long long)m->ranks_per_node);
    return ax_runtime_set(AX_RUNTIME_RANKS_PER_NODE, ranks);
}

/* Plans for `ranks` ranks of the machine (NULL: none is described), in the memory of its devices. */
static ax_status plan_for(int64_t ranks, ax_config *config, const args *a, const ax_machine *machine)
{
    ax_comm *world = NULL;
    bool limits = false;
    AX_CHECK(ranks <= MOST_RANKS, AX_ERR_USAGE,
             "the grid has %lld ranks, more than the %d that can be planned", (long long)ranks, MOST_RANKS);
    if (machine)
        AX_TRY(ax_machine_check_ranks(machine, ranks));
    if (machine)
        AX_TRY(limit_memory(machine, &limits));
    if (machine)
        AX_TRY(set_nodes(machine));
    AX_TRY(ax_comm_alone_create((int)ranks, &world));
    ax_status status = plan(world, config, a, machine, limits);
    ax_comm_destroy(&world);
    return status;
}

/* Searches for the layout instead of planning the one that is configured. */
static ax_status search(ax_config *config, const args *a, const ax_machine *machine)
{
    const ax_search_options by = {machine, (int)a->common.launch.ranks,
                                  .most = (int)ax_max(a->top, a->explain ? 4 : 1)};
    const cli_plan_search how = {&a->common, (int)ax_max(a->top, 1), a->tokens, a->explain, a->json};
    if (!ax_config_given(config, ax_runtime_options[AX_RUNTIME_LOG].key))
        ax_log_set_level(AX_LOG_ERROR); /* what one candidate warns of is no matter of the others */
    return cli_search_layout(config, &by, &how);
}

/* Records what a search lacks. */
static ax_status check_search(ax_config *config, const args *a, const ax_machine *machine)
{
    const char *key = ax_config_given(config, "grid") ? "grid" : "grid.data";
    if (!machine)
        ax_option_error(config->set, key,
                        "a search needs the times of a described machine: give --machine NAME or FILE");
    if (!a->common.launch.ranks)
        ax_option_error(config->set, key, "a search needs the number of ranks: give --ranks N");
    if (machine && ax_machine_check_ranks(machine, a->common.launch.ranks) != AX_OK)
        ax_option_error(config->set, key, "%s", ax_error_message());
    if (machine && ax_machine_check_times(machine, ax_config_dtype(config->train.precision),
                                          a->common.launch.ranks) != AX_OK)
        ax_option_error(config->set, key, "%s", ax_error_message());
    return ax_option_finish(config->set);
}

/* Returns true if keys have errors, of which others can be reported too. */
static bool has_errors(const ax_config *config, ax_status status)
{
    return status == AX_ERR_USAGE && config->set && ax_option_finish(config->set) != AX_OK;
}

static ax_status run(const void *raw)
{
    const args *a = raw;
    ax_machine *machine = NULL;
    ax_config config;
    int64_t ranks = a->common.launch.ranks;
    ax_status status = cli_config_open(&a->common, a->top ? AX_CONFIG_TO_SEARCH : AX_CONFIG_TO_PLAN, &config);
    const bool read = status == AX_OK || has_errors(&config, status),
               searches = read && (a->top || config.grid.choice);
    if (status != AX_OK && searches) /* what the search lacks is reported together with these errors */
        status = open_machine(a, &machine) == AX_OK ? check_search(&config, a, machine)
                                                    : ax_option_finish(config.set);
    if (status == AX_OK && !ranks)
        ranks = ax_grid_size_ranks(ax_config_grid(&config));
    if (status == AX_OK)
        status = open_machine(a, &machine);
    if (machine) {
        config.memory = machine->device.host_access ? AX_OFFLOAD_SHARED : AX_OFFLOAD_DISCRETE;
        config.scratch = machine->device.scratch;
    }
    if (status == AX_OK && a->tokens && !machine)
        status = ax_fail(AX_ERR_USAGE, "--tokens: times need a description of a machine: give --machine");
    if (status == AX_OK && a->explain && !searches)
        status = ax_fail(AX_ERR_USAGE, "--explain: only a search is explained: give --top K, or grid=auto");
    if (status == AX_OK && searches)
        status = check_search(&config, a, machine);
    if (status == AX_OK)
        status = searches ? search(&config, a, machine) : plan_for(ranks, &config, a, machine);
    ax_machine_close(&machine);
    ax_config_fini(&config);
    return status;
}

const cli_verb verb_plan = {
    .name = "plan",
    .summary = "say what a training run will need, before it is started",
    .details =
        "Prints, for one rank of each pipeline stage, the memory by class; and what a step computes and\n"
        "sends. These are the numbers that the run itself plans with and reports (mem_planned and\n"
        "comm_bytes in metrics.jsonl; comm_wire_bytes if the ranks of a node are known, by --machine or\n"
        "runtime.ranks_per_node, and the host accesses device memory). One process plans for any number\n"
        "of ranks; data and weights are not opened, and nothing is written. runtime.device_memory is the\n"
        "limit of a rank: the largest micro-batch within it is printed, or the keys that would make the\n"
        "run fit. With --machine the memory of that machine's devices is the limit, more ranks than it\n"
        "has are an error, and the plan says how long a step takes there: the step is replayed with the\n"
        "rates of the description. With --top K, or grid=auto, it searches the layout (axes, their order,\n"
        "micro-batch, zero, recomputation, offload, schedule) that takes the least time within the\n"
        "memory; the last line is the command that runs the best.",
    .examples = "axonn plan gpt.yaml\naxonn plan gpt.yaml grid.pipe=4 grid.data=16 train.recompute=full\n"
                "axonn plan gpt.yaml --ranks 64 --machine perlmutter --top 10 --explain\n"
                "axonn plan gpt.yaml --ranks 64 grid.z=64 --machine perlmutter --json",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .keys = ax_config_options,
};
