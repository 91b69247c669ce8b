/* Copies beside kernels, on every backend. CTest runs this with the emulated GPU, whose copies can be early
 * or late (support/emulated.h), so that a missing wait shows. */
#include "axonn/dev.h"

#include "support/check.h"
#include "support/emulated.h"

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* N: elements of a copy, more than 1 MiB. BUFFERS: device arrays, used in turn. */
enum { N = 300007, BUFFERS = 2, ROUNDS = 9 };
static const size_t bytes = N * sizeof(float);

/* How late copies of the emulated GPU are, in polls; by turns if below 0. */
enum { TURNS = -1, EARLY = 0, LATE = 4 };

/* The waits of a round, one of which a test may omit. */
typedef enum omitted { NOTHING, COMPUTE_FOR_IN, OUT_FOR_COMPUTE, IN_FOR_OUT, HOST_FOR_OUT, WAITS } omitted;

typedef struct bench {
    ax_device *dev;
    ax_stream compute, in, out;
    float *device[BUFFERS];
    float *to, *from; /* pinned, [ROUNDS][N] */
    ax_stream_event *came[BUFFERS], *computed[BUFFERS], *left[BUFFERS];
    emulated_delay_fn *delay; /* NULL: not the emulated GPU */
    emulated_count_fn *waits;
} bench;

static void open_bench(const char *name, bench *b)
{
    memset(b, 0, sizeof *b);
    OK(ax_device_open(name, 1, &b->dev));
    if (!strcmp(name, "cuda")) {
        b->delay = (emulated_delay_fn *)(uintptr_t)emulated_function(EMULATED_DELAY);
        b->waits = (emulated_count_fn *)(uintptr_t)emulated_function(EMULATED_WAITS);
    }
    b->compute = (ax_stream){.dev = b->dev};
    b->in = ax_copy_stream(b->dev, AX_TO_DEVICE);
    b->out = ax_copy_stream(b->dev, AX_TO_HOST);
    OK(ax_pinned_alloc(b->dev, ROUNDS * bytes, (void **)&b->to));
    OK(ax_pinned_alloc(b->dev, ROUNDS * bytes, (void **)&b->from));
    for (int k = 0; k < BUFFERS; k++) {
        OK(ax_device_alloc(b->dev, bytes, (void **)&b->device[k]));
        OK(ax_run_fill(&b->compute, &(ax_fill_args){N, 0, b->device[k], AX_F32}));
        OK(ax_stream_event_create(b->dev, &b->came[k]));
        OK(ax_stream_event_create(b->dev, &b->computed[k]));
        OK(ax_stream_event_create(b->dev, &b->left[k]));
    }
    OK(ax_stream_wait(&b->compute));
}

static void close_bench(bench *b)
{
    if (b->delay)
        b->delay(TURNS);
    for (int k = 0; k < BUFFERS; k++) {
        OK(ax_stream_event_wait(b->left[k]));
        ax_stream_event_destroy(&b->came[k]);
        ax_stream_event_destroy(&b->computed[k]);
        ax_stream_event_destroy(&b->left[k]);
        ax_device_free(b->dev, b->device[k], bytes);
    }
    ax_pinned_free(b->dev, b->to, ROUNDS * bytes);
    ax_pinned_free(b->dev, b->from, ROUNDS * bytes);
    ax_device_close(&b->dev);
}

static float value(int round, int i) { return (float)(i % 1013 + 1000 * round); }

static void delay(const bench *b, long polls)
{
    if (b->delay)
        b->delay(polls);
}

static ax_status await(ax_stream *stream, const ax_stream_event *event, bool omit)
{
    return omit ? AX_OK : ax_stream_await(stream, event);
}

/* Enqueues a round: a copy to the device, a kernel that doubles the numbers, a copy to the host. */
static void enqueue_round(bench *b, int round, omitted omit, long late_in, long late_out)
{
    int k = round % BUFFERS;
    float *to = b->to + (size_t)round * N, *from = b->from + (size_t)round * N;
    delay(b, late_in);
    OK(await(&b->in, b->left[k], omit == IN_FOR_OUT));
    OK(ax_copy_in_async(&b->in, b->device[k], to, bytes));
    OK(ax_stream_record(&b->in, b->came[k]));
    OK(await(&b->compute, b->came[k], omit == COMPUTE_FOR_IN));
    OK(ax_run_scale(&b->compute, &(ax_scale_args){N, 2, b->device[k], AX_F32}));
    OK(ax_stream_record(&b->compute, b->computed[k]));
    delay(b, late_out);
    OK(await(&b->out, b->computed[k], omit == OUT_FOR_COMPUTE));
    OK(ax_copy_out_async(&b->out, from, b->device[k], bytes));
    OK(ax_stream_record(&b->out, b->left[k]));
}

static bool came_back(const bench *b)
{
    bool same = true;
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < N; i++)
            same = same && b->from[(size_t)r * N + (size_t)i] == 2 * value(r, i);
    return same;
}

/* Enqueues all rounds, waits for the last ones, and returns whether all numbers came back doubled. */
static bool run_rounds(const char *name, omitted omit, long late_in, long late_out)
{
    bench b;
    open_bench(name, &b);
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < N; i++)
            b.to[(size_t)r * N + (size_t)i] = value(r, i);
    long before = b.waits ? b.waits() : 0;
    for (int r = 0; r < ROUNDS; r++)
        enqueue_round(&b, r, omit, late_in, late_out);
    assert_true(!b.waits || b.waits() == before); /* the host waited for nothing */
    for (int k = 0; k < BUFFERS && omit != HOST_FOR_OUT; k++)
        OK(ax_stream_event_wait(b.left[k]));
    bool same = came_back(&b);
    OK(ax_stream_wait(&b.compute));
    close_bench(&b);
    return same;
}

static void events_order_copies_and_kernels(void **state)
{
    static const char *const names[] = {"ref", "cpu", "check", "check:cpu", "cuda"};
    static const long late[] = {TURNS, EARLY, LATE};
    (void)state;
    for (size_t d = 0; d < AX_COUNT(names); d++)
        for (size_t i = 0; i < AX_COUNT(late) && !ax_device_absent(names[d]); i++)
            for (size_t j = 0; j < AX_COUNT(late); j++)
                if (!strcmp(names[d], "cuda") || i + j == 0)
                    assert_true(run_rounds(names[d], NOTHING, late[i], late[j]));
}

/* Each wait of a round is necessary, and the emulated GPU shows it. */
static void a_missing_wait_shows(void **state)
{
    static const long late[WAITS][2] = {[COMPUTE_FOR_IN] = {LATE, EARLY},
                                        [OUT_FOR_COMPUTE] = {EARLY, EARLY},
                                        [IN_FOR_OUT] = {EARLY, LATE},
                                        [HOST_FOR_OUT] = {EARLY, LATE}};
    (void)state;
    if (!getenv("AXONN_PLUGINS"))
        skip();
    for (int omit = NOTHING + 1; omit < WAITS; omit++)
        if (run_rounds("cuda", (omitted)omit, late[omit][0], late[omit][1]))
            fail_msg("wait %d is missing, and nothing shows it", omit);
}

/* A query does not wait, neither for the copy nor for kernels: a copy ends while kernels have yet to begin.
 */
static void queries_do_not_wait(void **state)
{
    bench b;
    bool done;
    (void)state;
    if (!getenv("AXONN_PLUGINS"))
        skip();
    open_bench("cuda", &b);
    float *seen = b.from, *copied = b.from + N;
    OK(ax_run_fill(&b.compute, &(ax_fill_args){N, 3, b.device[0], AX_F32}));
    OK(ax_copy_out_async(&b.compute, seen, b.device[0], bytes));
    b.delay(LATE);
    OK(ax_stream_event_done(b.left[1], &done));
    assert_true(done); /* never recorded */
    OK(ax_copy_in_async(&b.in, b.device[1], b.to, bytes));
    OK(ax_stream_record(&b.in, b.came[1]));
    OK(ax_stream_await(&b.out, b.came[1]));
    OK(ax_copy_out_async(&b.out, copied, b.device[1], bytes));
    OK(ax_stream_record(&b.out, b.left[1]));
    long before = b.waits();
    for (int poll = 1; poll < LATE; poll++) {
        OK(ax_stream_event_done(b.came[1], &done));
        assert_false(done);
    }
    OK(ax_stream_event_done(b.came[1], &done));
    assert_true(done);
    for (int poll = 1; poll < LATE; poll++) {
        OK(ax_stream_event_done(b.left[1], &done));
        assert_false(done);
    }
    OK(ax_stream_event_done(b.left[1], &done));
    assert_true(done && b.waits() == before);
    assert_true(seen[0] == 0 && seen[N - 1] == 0); /* the kernel has not run */
    OK(ax_stream_wait(&b.compute));
    assert_true(seen[0] == 3 && seen[N - 1] == 3);
    close_bench(&b);
}

static void pinned_memory_is_zeroed_or_refused(void **state)
{
    static const char *const names[] = {"cpu", "cuda"};
    (void)state;
    for (size_t d = 0; d < AX_COUNT(names); d++) {
        ax_device *dev;
        void *memory;
        if (ax_device_absent(names[d]))
            continue;
        OK(ax_device_open(names[d], 1, &dev));
        for (size_t size = 0; size <= bytes; size += bytes) {
            OK(ax_pinned_alloc(dev, size, &memory));
            for (size_t i = 0; i < size; i++)
                assert_int_equal(((char *)memory)[i], 0);
            ax_pinned_free(dev, memory, size);
        }
        ax_pinned_free(dev, NULL, 7);
        assert_int_equal(ax_pinned_alloc(dev, (size_t)1 << 60, &memory), AX_ERR_MEMORY);
        assert_null(memory);
        ax_device_close(&dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_order_copies_and_kernels), cmocka_unit_test(a_missing_wait_shows),
        cmocka_unit_test(queries_do_not_wait), cmocka_unit_test(pinned_memory_is_zeroed_or_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
