/* engine: a pipeline stage on a GPU chooses a task when all tasks before it have ended, except the newest,
 * which may still run. So the GPU always has the next task, and no task is chosen without the messages that
 * arrive meanwhile. The tasks have one kernel; each notes its end in pinned memory. */
#include "axonn/pipeline.h"

#include "support/emulated.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { STAGES = 2, MICRO_BATCHES = 7, STEPS = 3, HIDDEN = 33, TASKS = 3 * MICRO_BATCHES * STEPS };

typedef struct stage {
    ax_ctx *ctx;
    ax_model *model; /* defines the stages; its layers never run */
    ax_frame *frame;
    ax_pipeline *pipeline;
    ax_tensor x;             /* shape of an activation */
    int32_t *ones;           /* device: [TASKS], all 1 */
    volatile int32_t *ended; /* pinned: [TASKS], 1 when the GPU has ended the task */
    int tasks, ahead; /* ahead: number of tasks that were chosen before the GPU had ended the one before */
} stage;

/* The settings of a test. ahead[r]: result of rank r. */
typedef struct setup {
    ax_pipe_settings pipe;
    int ahead[STAGES];
} setup;

static ax_status begin_task(stage *s)
{
    for (int i = 0; i < s->tasks - 1; i++)
        AX_CHECK(s->ended[i], AX_ERR_INTERNAL, "task %d is chosen, but the GPU has not ended task %d",
                 s->tasks, i);
    s->ahead += s->tasks && !s->ended[s->tasks - 1];
    return AX_OK;
}

static ax_status end_task(stage *s)
{
    int i = s->tasks++;
    EXPECT(i < TASKS);
    return ax_copy_out_async(s->ctx->stream, (void *)(uintptr_t)&s->ended[i], &s->ones[i], sizeof s->ones[i]);
}

/* Receives the input of a forward or backward, or makes it, and sends the result. */
static ax_status compute(stage *s, ax_message_kind kind, ax_pipe_piece piece)
{
    bool back = kind == AX_MESSAGE_GRADIENT, begins = ax_model_begins(s->model, piece.chunk),
         ends = ax_model_ends(s->model, piece.chunk);
    ax_tensor x;
    AX_TRY(ax_frame_begin(s->frame, back ? "backward" : "forward", AX_MODE_TRAIN, NULL));
    if (back ? ends : begins) {
        AX_TRY(ax_frame_alloc(s->frame, &s->x, &x));
        AX_TRY(ax_run_fill(s->ctx->stream, &(ax_fill_args){HIDDEN, 1, x.data, AX_F32}));
    } else
        AX_TRY(ax_pipeline_take(s->pipeline, kind, s->frame, &x));
    AX_TRY(ax_run_scale(s->ctx->stream, &(ax_scale_args){HIDDEN, 2, x.data, AX_F32}));
    return (back ? begins : ends) ? AX_OK : ax_pipeline_send(s->pipeline, kind, s->frame, piece, &x);
}

static ax_status forward(void *user, ax_pipe_piece piece, int slot)
{
    stage *s = user;
    (void)slot;
    if (ax_pipeline_is_joint(s->pipeline, piece.chunk)) /* the backward does it */
        return AX_OK;
    AX_TRY(begin_task(s));
    AX_TRY(compute(s, AX_MESSAGE_ACTIVATION, piece));
    return end_task(s);
}

static ax_status backward(void *user, ax_pipe_piece piece, int slot)
{
    stage *s = user;
    (void)slot;
    AX_TRY(begin_task(s));
    if (ax_pipeline_is_joint(s->pipeline, piece.chunk))
        AX_TRY(compute(s, AX_MESSAGE_ACTIVATION, piece));
    AX_TRY(compute(s, AX_MESSAGE_GRADIENT, piece));
    return end_task(s);
}

static ax_status weights(void *user, ax_pipe_piece piece, int slot)
{
    (void)piece, (void)slot;
    AX_TRY(begin_task(user));
    return end_task(user);
}

static ax_status run_steps(stage *s)
{
    const ax_pipeline_tasks tasks = {
        .run = {[AX_PIPE_FORWARD] = forward, [AX_PIPE_BACKWARD] = backward, [AX_PIPE_WEIGHTS] = weights},
        .user = s};
    for (int i = 0; i < TASKS; i++)
        AX_TRY(ax_copy_in(s->ctx->stream, &s->ones[i], &(int32_t){1}, sizeof(int32_t)));
    for (int step = 1; step <= STEPS; step++) {
        AX_TRY(ax_pipeline_begin(s->pipeline, step, MICRO_BATCHES, true));
        AX_TRY(ax_pipeline_run(s->pipeline, &tasks));
    }
    return ax_stream_wait(s->ctx->stream);
}

static ax_status prepare(stage *s)
{
    ax_model_config config = {
        .layers = STAGES, .hidden = HIDDEN, .heads = 1, .kv_heads = 1, .ffn = 1, .vocab = 1, .seq_len = 1};
    ax_layout layout = ax_activation_layout(s->ctx, AX_ROLE_MODEL);
    s->x = ax_tensor_make(AX_F32, 3, (int64_t[]){1, 1, HIDDEN}, NULL, &layout);
    AX_TRY(ax_family_find("gpt2", &config.family));
    AX_TRY(ax_model_create(s->ctx, &config, &(ax_model_use){.recompute = 0}, &s->model));
    AX_TRY(ax_frame_create(s->ctx, 1 << 16, &s->frame));
    AX_TRY(ax_pipeline_create(s->model, 1, 1, MICRO_BATCHES, true, &s->pipeline));
    AX_TRY(ax_ctx_alloc(s->ctx, AX_MEMORY_BATCH, TASKS * sizeof *s->ones, (void **)&s->ones));
    return ax_pinned_alloc(s->ctx->dev, TASKS * sizeof *s->ended, (void **)&s->ended);
}

static ax_status run_stage(ax_comm *world, void *arg)
{
    setup *t = arg;
    stage s = {.tasks = 0};
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{1, 1, 1, STAGES, 1}}, "cuda", 1, AX_F32, 0, &s.ctx));
    s.ctx->parallel.pipe = t->pipe;
    ax_status status = prepare(&s);
    if (status == AX_OK)
        status = run_steps(&s);
    t->ahead[ax_comm_rank(world)] = s.ahead;
    ax_pipeline_destroy(&s.pipeline);
    ax_frame_destroy(&s.frame);
    ax_model_destroy(&s.model);
    ax_ctx_free(s.ctx, AX_MEMORY_BATCH, s.ones, TASKS * sizeof *s.ones);
    ax_pinned_free(s.ctx->dev, (void *)(uintptr_t)s.ended, TASKS * sizeof *s.ended);
    ax_ctx_destroy(&s.ctx);
    return status;
}

static void the_host_is_one_task_ahead(void **state)
{
    enum { LATE = 10 };
    static const ax_pipe_settings settings[] = {{.schedule = AX_PIPE_MESSAGE},
                                                {.schedule = AX_PIPE_MESSAGE, .slack = 4},
                                                {.schedule = AX_PIPE_MESSAGE, .slack = 1, .postpone = 2},
                                                {.schedule = AX_PIPE_GPIPE}};
    static const long delays[] = {-1, 0, LATE};
    emulated_delay_fn *delay = (emulated_delay_fn *)(uintptr_t)emulated_function(EMULATED_DELAY);
    (void)state;
    for (size_t i = 0; i < AX_COUNT(settings); i++)
        for (size_t d = 0; d < AX_COUNT(delays); d++) {
            setup t = {.pipe = settings[i]};
            delay(delays[d]);
            assert_ranks(STAGES, run_stage, &t);
            assert_true(t.ahead[0] > 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_host_is_one_task_ahead)};
    if (!getenv("AXONN_PLUGINS") || ax_device_absent("cuda"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
