/* Replays on the device "cuda": the results are those of launches one by one, and graphs are launched exactly
 * where launches repeat. CTest runs this on the emulated GPU, which counts graph launches. */
#include "axonn/dev.h"

#include "support/emulated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 64, ARRAYS = 3, MOST = 12 };

typedef struct bench {
    ax_device *dev;
    ax_stream stream;
    float *array;          /* device: [ARRAYS][N] */
    float want[ARRAYS][N]; /* expected */
    ax_stream copies;      /* to the host */
    float *pinned;         /* host: [N] */
    ax_stream_event *event;
    ax_replay *replay;
    emulated_count_fn *graphs;
    emulated_refuse_fn *refuse; /* NULL on a real GPU */
} bench;

static void open_bench(bench *b)
{
    memset(b, 0, sizeof *b);
    assert_int_equal(ax_device_open("cuda", 1, &b->dev), AX_OK);
    b->stream = (ax_stream){.dev = b->dev};
    assert_int_equal(ax_device_alloc(b->dev, sizeof b->want, (void **)&b->array), AX_OK);
    assert_int_equal(ax_replay_create(b->dev, &b->replay), AX_OK);
    b->copies = ax_copy_stream(b->dev, AX_TO_HOST);
    assert_int_equal(ax_pinned_alloc(b->dev, sizeof b->want[0], (void **)&b->pinned), AX_OK);
    assert_int_equal(ax_stream_event_create(b->dev, &b->event), AX_OK);
    for (int a = 0; a < ARRAYS; a++)
        for (int i = 0; i < N; i++)
            b->want[a][i] = (float)(a + i % 5) / 8;
    assert_int_equal(ax_copy_in(&b->stream, b->array, b->want, sizeof b->want), AX_OK);
    b->graphs = (emulated_count_fn *)(uintptr_t)emulated_function(EMULATED_GRAPHS);
    b->refuse = (emulated_refuse_fn *)(uintptr_t)emulated_function(EMULATED_REFUSE);
}

static void check_arrays(bench *b)
{
    float got[ARRAYS][N];
    assert_int_equal(ax_copy_out(&b->stream, got, b->array, sizeof got), AX_OK);
    assert_memory_equal(got, b->want, sizeof got);
}

static void close_bench(bench *b)
{
    check_arrays(b);
    ax_replay_destroy(&b->replay);
    ax_stream_event_destroy(&b->event);
    ax_pinned_free(b->dev, b->pinned, sizeof b->want[0]);
    ax_device_free(b->dev, b->array, sizeof b->want);
    ax_device_close(&b->dev);
}

/* A program is a text. A letter is a launch, which depends on all launches before it. '|' is a copy into
 * array 0, '.' a wait, '!' records an event; none of them can be part of a graph. '^' is a copy on a copy
 * stream, which does not concern graphs. */
static ax_status launch(bench *b, char what, float number)
{
    float *x = b->array, *y = b->array + N, *z = b->array + 2 * N;
    float *wx = b->want[0], *wy = b->want[1], *wz = b->want[2];
    switch (what) {
    case 'a': /* y = x + y */
        for (int i = 0; i < N; i++)
            wy[i] = wx[i] + wy[i];
        return ax_run_add(&b->stream, &(ax_add_args){N, x, y, y, AX_F32});
    case 'b': /* z = z + y */
        for (int i = 0; i < N; i++)
            wz[i] = wz[i] + wy[i];
        return ax_run_add(&b->stream, &(ax_add_args){N, z, y, z, AX_F32});
    case 'c':
    case 'd': /* x = x/2, or /4: the arguments differ */
        for (int i = 0; i < N; i++)
            wx[i] *= what == 'c' ? 0.5F : 0.25F;
        return ax_run_scale(&b->stream, &(ax_scale_args){N, what == 'c' ? 0.5 : 0.25, x, AX_F32});
    case '|':
        for (int i = 0; i < N; i++)
            wx[i] = number;
        return ax_copy_in(&b->stream, x, wx, sizeof b->want[0]);
    case '!':
        return ax_stream_record(&b->stream, b->event);
    case '^':
        return ax_copy_out_async(&b->copies, b->pinned, z, sizeof b->want[0]);
    default:
        return ax_stream_wait(&b->stream);
    }
}

static long pass(bench *b, const char *program, float number)
{
    long before = b->graphs ? b->graphs() : 0;
    assert_int_equal(ax_replay_begin(&b->stream, b->replay), AX_OK);
    ax_status status = AX_OK;
    for (const char *at = program; *at && status == AX_OK; at++)
        status = launch(b, *at, number);
    assert_int_equal(ax_replay_end(&b->stream, status), AX_OK);
    return b->graphs ? b->graphs() - before : -1;
}

static void programs(void **state)
{
    static const struct {
        const char *program;
        long graphs;
    } passes[] = {
        {"abca", 0},
        {"abca", 1},
        {"abca", 1}, /* recorded, captured, launched */
        {"abda", 0},
        {"abda", 1},
        {"abca", 0}, /* an argument differs; then the last launch differs */
        {"abcd", 0},
        {"abcd", 1},
        {"abcdab", 0}, /* longer than before */
        {"abcdab", 1},
        {"abcd", 0},
        {"abcd", 1}, /* shorter than before: the shorter pass was recorded anew */
        {"", 0},
        {"abcd", 1},
        {"abc", 0}, /* too few launches for a graph */
        {"abc", 0},
        {"|abca", 0},
        {"|abca", 1}, /* a copy at the beginning does not matter */
        {"abca|baba.cabd", 1},
        {"abca|baba.cabd", 3},    /* three segments */
        {"abca||..baba|cabd", 3}, /* cut by several copies and waits */
        {"abca|babc.cabd", 2},
        {"abca|babc.cabd", 3}, /* one segment differs */
        {"abca|babccabd", 1},
        {"abca|babccabd", 2}, /* two segments have become one */
        {"abca|babc.cabd", 2},
        {"abca|babc.cabd", 3},     /* the one segment has become two again */
        {"ab^ca!^babc^.cabd^", 3}, /* events cut as waits do, copies on copy streams do not */
    };
    bench b;
    (void)state;
    open_bench(&b);
    for (size_t i = 0; i < AX_COUNT(passes); i++) {
        long graphs = pass(&b, passes[i].program, (float)i);
        if (graphs >= 0 && graphs != passes[i].graphs)
            fail_msg("pass %zu, \"%s\": %ld graphs, not %ld", i, passes[i].program, graphs, passes[i].graphs);
        if (i % 3) /* otherwise several graphs are in flight */
            check_arrays(&b);
    }
    close_bench(&b);
}

/* While launches are timed, they are not deferred. */
static void timed_launches_are_launched(void **state)
{
    ax_kernel_total totals[AX_KERNEL_COUNT] = {{0}};
    bench b;
    (void)state;
    open_bench(&b);
    for (int i = 0; i < 4; i++) {
        ax_listener times = ax_kernel_totals(i == 2 ? totals : NULL);
        ax_device_listen(b.dev, &times);
        long graphs = pass(&b, "abca", 1);
        ax_device_unlisten(b.dev, &times);
        assert_true(graphs < 0 || graphs == (i == 1 || i == 3));
    }
    assert_int_equal(totals[AX_K_add].calls, 3);
    close_bench(&b);
}

/* If timing begins in the middle of a pass, the deferred launches run before the timed ones. */
static void timing_may_begin_within(void **state)
{
    ax_kernel_total totals[AX_KERNEL_COUNT] = {{0}};
    bench b;
    (void)state;
    open_bench(&b);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ax_replay_begin(&b.stream, b.replay), AX_OK);
        ax_status status = launch(&b, 'c', 0);
        if (status == AX_OK)
            status = launch(&b, 'a', 0);
        ax_listener times = ax_kernel_totals(i == 1 ? totals : NULL);
        ax_device_listen(b.dev, &times);
        for (const char *at = "cbad"; *at && status == AX_OK; at++)
            status = launch(&b, *at, 0);
        assert_int_equal(ax_replay_end(&b.stream, status), AX_OK);
        ax_device_unlisten(b.dev, &times);
        check_arrays(&b);
    }
    close_bench(&b);
}

/* If a capture is refused, the launches run one by one, and the capture is tried again: the 1st, 2nd, 3rd,
 * 5th time … */
static void refused_captures_are_tried_again(void **state)
{
    static const long graphs[] = {0, 0, 0, 0, 0, 1, 1};
    bench b;
    (void)state;
    open_bench(&b);
    if (b.refuse) {
        b.refuse(3, 0);
        for (size_t i = 0; i < AX_COUNT(graphs); i++) {
            assert_int_equal(pass(&b, "abca", 1), graphs[i]);
            check_arrays(&b);
        }
    }
    close_bench(&b);
}

/* ax_device_free runs deferred launches, but has no status. If they fail there, the pass fails later. */
static void no_failure_is_lost(void **state)
{
    bench b;
    void *memory;
    (void)state;
    open_bench(&b);
    for (int i = 0; b.refuse && i < 3; i++) {
        assert_int_equal(ax_device_alloc(b.dev, 64, &memory), AX_OK);
        b.refuse(0, i == 2);
        assert_int_equal(ax_replay_begin(&b.stream, b.replay), AX_OK);
        ax_status status = AX_OK;
        for (const char *at = "abca"; *at && status == AX_OK; at++)
            status = launch(&b, *at, 1);
        ax_device_free(b.dev, memory, 64);
        for (const char *at = "abca"; *at && status == AX_OK; at++)
            status = launch(&b, *at, 1);
        assert_int_equal(ax_replay_end(&b.stream, status), i == 2 ? AX_ERR_MEMORY : AX_OK);
    }
    assert_int_equal(ax_copy_out(&b.stream, b.want, b.array, sizeof b.want),
                     AX_OK); /* the values do not matter */
    close_bench(&b);
}

/* A failure ends the replay. Its deferred launches are dropped, and the next replay starts normally. */
static void failures_end_a_replay(void **state)
{
    bench b;
    (void)state;
    open_bench(&b);
    pass(&b, "abca", 1);
    pass(&b, "abca", 1);
    check_arrays(&b);
    assert_int_equal(ax_replay_begin(&b.stream, b.replay), AX_OK);
    assert_int_equal(ax_run_add(&b.stream, &(ax_add_args){N, b.array, b.array + N, b.array + N, AX_F32}),
                     AX_OK);
    ax_status status = ax_run_scale(&b.stream, &(ax_scale_args){N, 0.5, b.array, AX_I32});
    assert_int_equal(ax_replay_end(&b.stream, status), AX_ERR_USAGE);
    check_arrays(&b);
    assert_true(pass(&b, "abca", 1) != 0);
    close_bench(&b);
}

/* A thousand random launches, some of which change from pass to pass. */
static void whatever_comes(void **state)
{
    bench b;
    uint32_t draw[4];
    char program[MOST + 1] = "abcabcabcabc";
    (void)state;
    open_bench(&b);
    for (uint64_t i = 0; i < 100; i++) {
        ax_philox(5, 0, i, draw);
        if (draw[0] % 3 == 0)
            program[draw[1] % MOST] = "abcd|."[draw[2] % 6];
        size_t end = draw[3] % 4 ? MOST : draw[1] % MOST;
        char some[MOST + 1] = "";
        memcpy(some, program, end);
        pass(&b, some, (float)(i % 9));
        check_arrays(&b);
    }
    close_bench(&b);
}

static void nonsense_is_refused(void **state)
{
    ax_device *dev;
    ax_replay *replay;
    (void)state;
    assert_int_equal(ax_device_open("ref", 1, &dev), AX_OK);
    setenv("AXONN_GRAPHS", "yes", 1);
    assert_int_equal(ax_replay_create(dev, &replay), AX_ERR_USAGE);
    assert_string_equal(ax_error_message(), "AXONN_GRAPHS: must be on or off, not \"yes\"");
    unsetenv("AXONN_GRAPHS");
    ax_device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(programs),
                                       cmocka_unit_test(timed_launches_are_launched),
                                       cmocka_unit_test(timing_may_begin_within),
                                       cmocka_unit_test(refused_captures_are_tried_again),
                                       cmocka_unit_test(no_failure_is_lost),
                                       cmocka_unit_test(failures_end_a_replay),
                                       cmocka_unit_test(whatever_comes),
                                       cmocka_unit_test(nonsense_is_refused)};
    if (ax_device_absent("cuda")) {
        printf("cuda: %s\n", ax_device_absent("cuda"));
        return getenv("AXONN_PLUGINS") ? 1 : 77; /* an emulated GPU is always there */
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
