/* tensor: host memory of frames, the callback before memory becomes invalid, and recordings of tasks. */
#include "tensor/frame.h"

#include "support/check.h"
#include "support/sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

typedef struct world {
    ax_comm *self; /* NULL in a dry run */
    ax_ctx *ctx;
    ax_frame *frame;
} world;

static const ax_grid_size one_rank = {{1}};

static world open_world(const char *device)
{
    world w;
    OK(ax_comm_self_create(&w.self));
    OK(ax_ctx_create(w.self, one_rank, device, 1, AX_F32, 1, &w.ctx));
    OK(ax_frame_create(w.ctx, 1 << 16, &w.frame));
    return w;
}

/* A world whose frame records. */
static world open_dry_world(void)
{
    world w = {.self = NULL};
    OK(ax_ctx_create_dry(0, 1, one_rank, AX_F32, NULL, &w.ctx));
    OK(ax_frame_create(w.ctx, 0, &w.frame));
    return w;
}

static void close_world(world *w)
{
    ax_frame_destroy(&w->frame);
    ax_ctx_destroy(&w->ctx);
    ax_comm_destroy(&w->self);
}

/* Tensors beside each other share rows. */
static void tensors_lie_beside_each_other(void **state)
{
    (void)state;
    enum { ROWS = 6, SIZE = sizeof(uint16_t) };
    const ax_tensor like[AX_BESIDE] = {
        ax_tensor_make(AX_BF16, 3, (int64_t[]){2, 3, 5}, NULL, NULL),
        ax_tensor_make(AX_BF16, 3, (int64_t[]){2, 3, 8}, NULL, NULL),
        ax_tensor_make(AX_BF16, 3, (int64_t[]){2, 3, 1}, NULL, NULL),
    };
    world w = open_world("ref");
    ax_tensor t[AX_BESIDE], next;
    OK(ax_frame_begin(w.frame, "task", AX_MODE_EVAL, NULL));
    OK(ax_frame_alloc_beside(w.frame, AX_BESIDE, like, t));
    OK(ax_frame_alloc(w.frame, &like[0], &next));
    assert_ptr_equal(t[1].data, (char *)t[0].data + 5 * SIZE);
    assert_ptr_equal(t[2].data, (char *)t[1].data + 8 * SIZE);
    assert_true((char *)next.data >= (char *)t[0].data + ROWS * 14 * SIZE);
    for (int i = 0; i < AX_BESIDE; i++) {
        assert_int_equal(ax_tensor_pitch(w.ctx->grid, &t[i]), 14);
        assert_int_equal(t[i].dim[2], like[i].dim[2]);
    }
    close_world(&w);
}

/* Blocks stay where they are, do not overlap, start as zeros, and are the same ones in the next task. */
static void host_memory_is_reused(void **state)
{
    (void)state;
    enum { N = 40 };
    static const size_t sizes[] = {1, 1000, AX_FRAME_HOST, 16, 3000, 2000};
    world w = open_world("ref");
    unsigned char *first[N], *block[N];
    for (int task = 0; task < 3; task++) {
        OK(ax_frame_begin(w.frame, "task", AX_MODE_EVAL, NULL));
        for (int i = 0; i < N; i++) {
            size_t n = sizes[i % AX_COUNT(sizes)];
            OK(ax_frame_host(w.frame, n, (void **)&block[i]));
            assert_int_equal((uintptr_t)block[i] % _Alignof(max_align_t), 0);
            for (size_t k = 0; k < n; k++)
                assert_int_equal(block[i][k], 0);
            memset(block[i], i + 1, n);
        }
        for (int i = 0; i < N; i++) {
            for (size_t k = 0; k < sizes[i % AX_COUNT(sizes)]; k++)
                assert_int_equal(block[i][k], i + 1);
            first[i] = task ? first[i] : block[i];
            assert_ptr_equal(first[i], block[i]);
        }
    }
    close_world(&w);
}

typedef struct listener {
    const ax_frame *frame;
    char said[64]; /* the running task at the time of the callback */
    int calls;
    ax_status answer;
} listener;

static ax_status told(void *user)
{
    listener *l = user;
    l->calls++;
    strcpy(l->said, ax_frame_task_name(l->frame));
    return l->answer;
}

static void the_callback_at_the_end_of_a_task_runs_once(void **state)
{
    (void)state;
    world w = open_world("ref");
    listener a = {.frame = w.frame}, b = {.frame = w.frame};
    assert_string_equal(ax_frame_task_name(w.frame), "");
    OK(ax_frame_begin(w.frame, "one", AX_MODE_EVAL, NULL));
    OK(ax_frame_at_end(w.frame, told, &a));
    OK(ax_frame_at_end(w.frame, told, &a));
    assert_int_equal(a.calls, 0);
    OK(ax_frame_begin(w.frame, "two", AX_MODE_EVAL, NULL));
    assert_int_equal(a.calls, 1);
    assert_string_equal(a.said, "one");
    OK(ax_frame_begin(w.frame, "three", AX_MODE_EVAL, NULL));
    assert_int_equal(a.calls, 1);
    /* Registering another user calls the first one's callback at once. */
    OK(ax_frame_at_end(w.frame, told, &a));
    OK(ax_frame_at_end(w.frame, told, &b));
    assert_int_equal(a.calls, 2);
    assert_int_equal(b.calls, 0);
    b.answer = AX_ERR_COMM;
    assert_int_equal(ax_frame_begin(w.frame, "four", AX_MODE_EVAL, NULL), AX_ERR_COMM);
    assert_int_equal(b.calls, 1);
    assert_int_equal(ax_frame_begin(w.frame, "a name of more than two dozen letters", AX_MODE_EVAL, NULL),
                     AX_ERR_INTERNAL);
    close_world(&w);
}

static void use(world *w, int64_t count)
{
    void *memory;
    OK(ax_frame_begin(w->frame, "task", AX_MODE_EVAL, NULL));
    OK(ax_frame_scratch(w->frame, AX_F32, count, &memory));
    OK(ax_run_fill(w->ctx->stream, &(ax_fill_args){.n = count, .y = memory, .dtype = AX_F32}));
}

/* A recorded task must repeat its allocations; after ax_frame_forget it may make others. */
static void a_forgotten_task_is_recorded_again(void **state)
{
    (void)state;
    world w = open_dry_world();
    ax_frame_plan *plan;
    use(&w, 1000);
    ax_frame_forget(w.frame);
    use(&w, 64);
    OK(ax_frame_plan_create(w.frame, 1, NULL, NULL, &plan));
    assert_int_equal(ax_frame_plan_bytes(plan), 64 * sizeof(float));
    ax_frame_plan_destroy(&plan);
    void *memory;
    OK(ax_frame_begin(w.frame, "task", AX_MODE_EVAL, NULL));
    assert_int_equal(ax_frame_scratch(w.frame, AX_F32, 1000, &memory), AX_ERR_INTERNAL);
    close_world(&w);
}

/* Returns the size of the plan made from the task recorded so far. */
static size_t planned(const world *w)
{
    ax_frame_plan *plan;
    OK(ax_frame_plan_create(w->frame, 1, NULL, NULL, &plan));
    size_t bytes = ax_frame_plan_bytes(plan);
    ax_frame_plan_destroy(&plan);
    return bytes;
}

enum { N = 1024 };

static void *new_array(const world *w)
{
    void *memory;
    OK(ax_frame_scratch(w->frame, AX_F32, N, &memory));
    OK(ax_run_fill(w->ctx->stream, &(ax_fill_args){.n = N, .y = memory, .dtype = AX_F32}));
    return memory;
}

/* One task of two parts: the first uses a and kept, the second uses kept and b. */
static void run_two_parts(ax_frame *frame, ax_stream *stream, void *at[3])
{
    const ax_fill_args fill = {.n = N, .dtype = AX_F32};
    OK(ax_frame_begin(frame, "task", AX_MODE_TRAIN, NULL));
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            OK(ax_frame_next_part(frame, "backward"));
        OK(ax_frame_scratch(frame, AX_F32, N, &at[i]));
        ax_fill_args one = fill;
        one.y = at[i];
        OK(ax_run_fill(stream, &one));
    }
    assert_string_equal(ax_frame_task_name(frame), "backward");
    ax_fill_args again = fill;
    again.y = at[1];
    OK(ax_run_fill(stream, &again));
}

/* With several slots, what both parts use is in each slot, and all else is shared. */
static void slots_share_what_one_part_uses(void **state)
{
    (void)state;
    enum { BYTES = N * sizeof(float) };
    world dry = open_dry_world();
    ax_frame_plan *one, *two;
    ax_frame *first, *second;
    void *at[3], *other[3];
    run_two_parts(dry.frame, dry.ctx->stream, at);
    OK(ax_frame_plan_create(dry.frame, 1, NULL, NULL, &one));
    OK(ax_frame_plan_create(dry.frame, 2, NULL, NULL, &two));
    assert_int_equal(ax_frame_plan_bytes(one), 2 * BYTES);         /* kept, and a or b */
    assert_int_equal(ax_frame_plan_bytes(two), BYTES + 2 * BYTES); /* a or b, and kept twice */
    close_world(&dry);
    world w = open_world("ref");
    OK(ax_frame_create_planned(w.ctx, two, &first));
    OK(ax_frame_create_slot(first, 1, &second));
    run_two_parts(first, w.ctx->stream, at);
    run_two_parts(second, w.ctx->stream, other);
    assert_true(at[0] == other[0] && at[1] != other[1] && at[2] == other[2] && at[0] == at[2]);
    ax_frame_destroy(&second);
    ax_frame_destroy(&first);
    ax_frame_plan_destroy(&one);
    ax_frame_plan_destroy(&two);
    close_world(&w);
}

static bool runs_in_first(const void *user, int slot, const char *task)
{
    return !slot && !strcmp(task, user);
}

/* A slot that does not run a task has no memory of its own for what the task keeps, and refuses to run it. */
static void slots_are_as_large_as_their_tasks(void **state)
{
    (void)state;
    enum { BYTES = N * sizeof(float) };
    world dry = open_dry_world();
    ax_frame_plan *plan;
    ax_frame *first, *second;
    void *at[3];
    run_two_parts(dry.frame, dry.ctx->stream, at);
    OK(ax_frame_plan_create(dry.frame, 2, runs_in_first, "task", &plan));
    assert_int_equal(ax_frame_plan_bytes(plan), BYTES + BYTES); /* a or b, and kept once */
    close_world(&dry);
    world w = open_world("ref");
    OK(ax_frame_create_planned(w.ctx, plan, &first));
    OK(ax_frame_create_slot(first, 1, &second));
    run_two_parts(first, w.ctx->stream, at);
    assert_int_equal(ax_frame_begin(second, "task", AX_MODE_TRAIN, NULL), AX_ERR_INTERNAL);
    ax_frame_destroy(&second);
    ax_frame_destroy(&first);
    ax_frame_plan_destroy(&plan);
    close_world(&w);
}

/* The optimizer reaches gradients through a table of pointers. They must stay alive until the update, so an
 * array allocated in between may not share their memory. */
static void pointers_in_a_table_count_as_uses(void **state)
{
    (void)state;
    world w = open_dry_world();
    void *weights, *memory;
    OK(ax_ctx_alloc(w.ctx, AX_MEMORY_WEIGHTS, N * sizeof(float), &weights));
    OK(ax_ctx_alloc(w.ctx, AX_MEMORY_WEIGHTS, sizeof(ax_update_array), &memory));
    OK(ax_frame_begin(w.frame, "task", AX_MODE_TRAIN, NULL));
    const ax_update_array entry = {.n = N, .w = weights, .g = new_array(&w), .g_dtype = AX_F32};
    OK(ax_copy_in(w.ctx->stream, memory, &entry, sizeof entry));
    new_array(&w);
    assert_int_equal(planned(&w), N * sizeof(float));
    ax_sgd_args update = {.n = N, .arrays = 1, .array = memory, .table = &entry, .dtype = AX_F32};
    OK(ax_run_sgd(w.ctx->stream, &update));
    assert_int_equal(planned(&w), 2 * N * sizeof(float));
    update.table = NULL;
    assert_int_equal(ax_run_sgd(w.ctx->stream, &update), AX_ERR_USAGE);
    ax_ctx_free(w.ctx, AX_MEMORY_WEIGHTS, memory, sizeof entry);
    ax_ctx_free(w.ctx, AX_MEMORY_WEIGHTS, weights, N * sizeof(float));
    close_world(&w);
}

/* An integer argument of a kernel that equals an address in the frame does not count as a use of memory. */
static void integer_arguments_are_not_addresses(void **state)
{
    (void)state;
    world w = open_dry_world();
    OK(ax_frame_begin(w.frame, "task", AX_MODE_TRAIN, NULL));
    void *first = new_array(&w), *second = new_array(&w);
    OK(ax_run_dropout(w.ctx->stream, &(ax_dropout_args){.rows = 1,
                                                        .cols = N,
                                                        .global_cols = N,
                                                        .key = (uintptr_t)first,
                                                        .x = second,
                                                        .y = second,
                                                        .dtype = AX_F32}));
    assert_int_equal(planned(&w), N * sizeof(float));
    close_world(&w);
}

/* An operand that extends past the end of an allocation counts as a use of the next one too. */
static void an_operand_uses_every_allocation_that_it_covers(void **state)
{
    (void)state;
    world w = open_dry_world();
    OK(ax_frame_begin(w.frame, "task", AX_MODE_TRAIN, NULL));
    void *first = new_array(&w);
    new_array(&w);
    OK(ax_run_scale(w.ctx->stream, &(ax_scale_args){.n = N, .x = first, .dtype = AX_F32}));
    new_array(&w);
    assert_int_equal(planned(&w), 2 * N * sizeof(float));
    OK(ax_run_scale(w.ctx->stream, &(ax_scale_args){.n = N + 1, .x = first, .dtype = AX_F32}));
    assert_int_equal(planned(&w), 3 * N * sizeof(float));
    close_world(&w);
}

static void touch(const world *w, void *memory, int64_t n)
{
    OK(ax_run_scale(w->ctx->stream, &(ax_scale_args){.n = n, .x = memory, .dtype = AX_F32}));
}

/* Records the forward and backward of `layers` layers. Each layer saves memory that its backward uses last,
 * and scratch that only it uses. */
static void record_layers(const world *w, int layers)
{
    void **saved;
    OK(ax_calloc((size_t)layers, sizeof *saved, &saved));
    OK(ax_frame_begin(w->frame, "task", AX_MODE_TRAIN, NULL));
    for (int i = 0; i < 2 * layers; i++) {
        int layer = i < layers ? i : 2 * layers - 1 - i, n = 100 + 50 * (i % 3);
        void *scratch;
        OK(ax_frame_scratch(w->frame, AX_F32, n, &scratch));
        touch(w, scratch, n);
        if (i < layers)
            OK(ax_frame_scratch(w->frame, AX_F32, 40 + layer % 5, &saved[layer]));
        touch(w, saved[layer], 40);
        touch(w, scratch, n);
    }
    free(saved);
}

static int by_offset(const void *x, const void *y)
{
    const ax_frame_alloc_record *a = *(ax_frame_alloc_record *const *)x,
                                *b = *(ax_frame_alloc_record *const *)y;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* Checks at 20 points of time that the memory of live allocations does not overlap. */
static void check_no_overlap(const ax_frame_task *task)
{
    const ax_frame_alloc_record **alive;
    OK(ax_calloc((size_t)task->n, sizeof *alive, &alive));
    for (int k = 0; k < 20; k++) {
        int n = 0;
        int64_t now = task->alloc[task->n - 1].last * k / 19;
        for (int i = 0; i < task->n; i++)
            if (task->alloc[i].birth <= now && task->alloc[i].last >= now)
                alive[n++] = &task->alloc[i];
        qsort(alive, (size_t)n, sizeof *alive, by_offset);
        for (int i = 1; i < n; i++)
            assert_true(alive[i - 1]->offset + alive[i - 1]->bytes <= alive[i]->offset);
    }
    free(alive);
}

/* Returns the largest number of bytes alive at a time, which is a lower bound for any plan. */
static size_t most_alive(const ax_frame_task *task)
{
    int64_t end = 0, *change, alive = 0, most = 0;
    for (int i = 0; i < task->n; i++)
        end = ax_max(end, task->alloc[i].last);
    OK(ax_calloc((size_t)end + 2, sizeof *change, &change));
    for (int i = 0; i < task->n; i++) {
        change[task->alloc[i].birth] += (int64_t)task->alloc[i].bytes;
        change[task->alloc[i].last + 1] -= (int64_t)task->alloc[i].bytes;
    }
    for (int64_t now = 0; now <= end; now++) {
        alive += change[now];
        most = ax_max(most, alive);
    }
    free(change);
    return (size_t)most;
}

/* The planning time of a deep network is about linear, and its plan is at most a quarter larger than the
 * bound. */
static void deep_networks_are_planned_quickly(void **state)
{
    (void)state;
    static const int layers[] = {3, 1000, 50000};
    for (size_t i = 0; i < AX_COUNT(layers); i++) {
        world w = open_dry_world();
        ax_frame_plan *plan;
        record_layers(&w, layers[i]);
        clock_t begin = clock();
        OK(ax_frame_plan_create(w.frame, 1, NULL, NULL, &plan));
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        size_t least = most_alive(&plan->task[0]);
        print_message("a plan of %d layers took %.2f s: %.1f %%\n", layers[i], seconds,
                      100.0 * (double)ax_frame_plan_bytes(plan) / (double)least);
        if (seconds > (SANITIZED ? 50 : 5))
            fail_msg("a plan of %d layers took %.1f s", layers[i], seconds);
        check_no_overlap(&plan->task[0]);
        assert_in_range(ax_frame_plan_bytes(plan), least, least + least / 4);
        ax_frame_plan_destroy(&plan);
        close_world(&w);
    }
}

/* Ends the run of a segment that `before` describes. */
static void end_segment(const world *w, const ax_frame_run *before)
{
    OK(ax_frame_end_segment(w->frame, before));
}

static bool has_change(const world *w, const ax_tensor *x)
{
    bool changed;
    OK(ax_frame_change(w->frame, x, &changed));
    return changed;
}

/* Asserts that the second run takes exactly this result. */
static void takes(const world *w, const ax_tensor *result)
{
    ax_tensor got;
    bool taken;
    OK(ax_frame_take(w->frame, result, &got, &taken));
    assert_true(taken && got.data == result->data);
}

static const int64_t pair[] = {2, 3}, triple[] = {2, 3, 4};

/* The first run of a segment keeps two results, of which it changes the first and a tensor beside them. */
static void run_first(const world *w, ax_tensor result[2])
{
    ax_frame_run before;
    ax_tensor like = ax_tensor_make(AX_F32, 2, pair, NULL, NULL), other;
    OK(ax_frame_begin_segment(w->frame, false, &before));
    for (int i = 0; i < 2; i++) {
        OK(ax_frame_alloc(w->frame, &like, &result[i]));
        OK(ax_frame_alloc(w->frame, &like, &other));
        assert_false(ax_frame_takes(w->frame));
        OK(ax_frame_keep(w->frame, &result[i]));
        assert_false(has_change(w, &other) || (!i && has_change(w, &result[i])));
    }
    end_segment(w, &before);
}

static void run_second(const world *w, const ax_tensor result[2])
{
    ax_frame_run before;
    OK(ax_frame_begin_segment(w->frame, true, &before));
    takes(w, &result[0]);
    assert_false(has_change(w, &result[1]));
    assert_true(has_change(w, &result[0]));
    assert_false(has_change(w, &result[0]));
    takes(w, &result[1]);
    end_segment(w, &before);
}

/* Segments run again in the reverse order; each takes what it has kept, in order, with its changes. */
static void segments_take_what_they_have_kept(void **state)
{
    (void)state;
    world w = open_world("ref");
    ax_tensor one[2], two[2], got;
    ax_frame_run before;
    bool taken;
    for (int keeps = 0; keeps < 2; keeps++) {
        w.ctx->parallel.keep_results = keeps;
        OK(ax_frame_begin(w.frame, "task", keeps ? AX_MODE_TRAIN : AX_MODE_EVAL, NULL));
        run_first(&w, one);
        run_first(&w, two);
        OK(ax_frame_take(w.frame, &one[0], &got, &taken));
        assert_false(taken);
    }
    run_second(&w, two);
    run_second(&w, one);
    FAILS(AX_ERR_INTERNAL, "more segments again than forward",
          ax_frame_begin_segment(w.frame, true, &before));
    close_world(&w);
}

/* The second run of a segment is the first run of one in it, which keeps what the second run takes. */
static void segments_in_segments(void **state)
{
    (void)state;
    world w = open_world("ref");
    ax_tensor result, like = ax_tensor_make(AX_F32, 2, pair, NULL, NULL);
    ax_frame_run outer, inner;
    w.ctx->parallel.keep_results = true;
    OK(ax_frame_begin(w.frame, "task", AX_MODE_TRAIN, NULL));
    for (int again = 0; again < 2; again++) {
        OK(ax_frame_begin_segment(w.frame, again, &outer));
        OK(ax_frame_begin_segment(w.frame, false, &inner));
        if (again) {
            takes(&w, &result);
        } else {
            OK(ax_frame_alloc(w.frame, &like, &result));
            OK(ax_frame_keep(w.frame, &result));
        }
        assert_int_equal(has_change(&w, &result), again);
        end_segment(&w, &inner);
        end_segment(&w, &outer);
    }
    OK(ax_frame_begin_segment(w.frame, true, &inner));
    takes(&w, &result);
    assert_true(has_change(&w, &result));
    end_segment(&w, &inner);
    close_world(&w);
}

static void second_runs_must_do_the_same(void **state)
{
    (void)state;
    world w = open_world("ref");
    ax_tensor result[2], got, wide = ax_tensor_make(AX_F32, 3, triple, NULL, NULL);
    ax_frame_run before;
    bool taken;
    w.ctx->parallel.keep_results = true;
    OK(ax_frame_begin(w.frame, "task", AX_MODE_TRAIN, NULL));
    run_first(&w, result);
    OK(ax_frame_begin_segment(w.frame, true, &before));
    FAILS(AX_ERR_INTERNAL, "other collectives", ax_frame_take(w.frame, &wide, &got, &taken));
    takes(&w, &result[0]);
    FAILS(AX_ERR_INTERNAL, "other collectives", ax_frame_take(w.frame, &result[1], &got, &taken));
    assert_true(has_change(&w, &result[0]));
    FAILS(AX_ERR_INTERNAL, "fewer collectives", ax_frame_end_segment(w.frame, &before));
    takes(&w, &result[1]);
    FAILS(AX_ERR_INTERNAL, "other collectives", ax_frame_take(w.frame, &result[1], &got, &taken));
    close_world(&w);
}

/* In a plan, the memory of a result is in use until it is taken, also if nothing reads it then. */
static void kept_results_stay(void **state)
{
    (void)state;
    world w = open_dry_world();
    ax_frame_run before;
    w.ctx->parallel.keep_results = true;
    OK(ax_frame_begin(w.frame, "task", AX_MODE_TRAIN, NULL));
    OK(ax_frame_begin_segment(w.frame, false, &before));
    ax_tensor result = ax_tensor_make(AX_F32, 1, (int64_t[]){N}, NULL, NULL);
    result.data = new_array(&w);
    OK(ax_frame_keep(w.frame, &result));
    end_segment(&w, &before);
    new_array(&w);
    assert_int_equal(planned(&w), N * sizeof(float));
    OK(ax_frame_begin_segment(w.frame, true, &before));
    takes(&w, &result);
    end_segment(&w, &before);
    assert_int_equal(planned(&w), 2 * N * sizeof(float));
    close_world(&w);
}

/* Sizes are counted without overflow: an allocation that does not fit must not return memory. */
static void sizes_that_do_not_fit_are_errors(void **state)
{
    (void)state;
    world w = open_world("ref");
    ax_tensor out, like = ax_tensor_make(AX_F64, 3, (int64_t[]){2, 1, 4}, NULL, NULL);
    void *memory;
    ax_frame *huge;
    OK(ax_frame_begin(w.frame, "task", AX_MODE_EVAL, NULL));
    OK(ax_frame_alloc(w.frame, &like, &out));
    like.dim[0] = -2;
    FAILS(AX_ERR_USAGE, "shape -2 x 1 x 4 has a negative extent", ax_frame_alloc(w.frame, &like, &out));
    like.dim[0] = like.dim[1] = INT64_C(1) << 31; /* 2^67 bytes */
    FAILS(AX_ERR_USAGE, "shape 2147483648 x 2147483648 x 4 is too large",
          ax_frame_alloc(w.frame, &like, &out));
    like.dim[2] = 0; /* an extent of 0 must not hide an overflow */
    FAILS(AX_ERR_USAGE, "2147483648 x 2147483648 x 0", ax_frame_alloc(w.frame, &like, &out));
    FAILS(AX_ERR_USAGE, "count is -1; it must be from 0 to 2^48",
          ax_frame_scratch(w.frame, AX_F32, -1, &memory));
    FAILS(AX_ERR_USAGE, "from 0 to 2^48", ax_frame_scratch(w.frame, AX_F32, INT64_MAX, &memory));
    FAILS(AX_ERR_MEMORY, "64.0 KiB is too small", ax_frame_scratch(w.frame, AX_F32, 1 << 20, &memory));
    FAILS(AX_ERR_MEMORY, "memory", ax_frame_create(w.ctx, SIZE_MAX, &huge));
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_is_reused),
        cmocka_unit_test(tensors_lie_beside_each_other),
        cmocka_unit_test(segments_take_what_they_have_kept),
        cmocka_unit_test(segments_in_segments),
        cmocka_unit_test(second_runs_must_do_the_same),
        cmocka_unit_test(kept_results_stay),
        cmocka_unit_test(the_callback_at_the_end_of_a_task_runs_once),
        cmocka_unit_test(a_forgotten_task_is_recorded_again),
        cmocka_unit_test(slots_share_what_one_part_uses),
        cmocka_unit_test(slots_are_as_large_as_their_tasks),
        cmocka_unit_test(pointers_in_a_table_count_as_uses),
        cmocka_unit_test(integer_arguments_are_not_addresses),
        cmocka_unit_test(an_operand_uses_every_allocation_that_it_covers),
        cmocka_unit_test(deep_networks_are_planned_quickly),
        cmocka_unit_test(sizes_that_do_not_fit_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
