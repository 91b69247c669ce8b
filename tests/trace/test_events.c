/* Event rings: order, overwriting of old events, rings of several writing threads, the exported file. */
#include "axonn/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEPT = 8, MANY = 1000 };

static ax_trace *new_trace(void)
{
    ax_trace *trace;
    assert_int_equal(ax_trace_create(KEPT - 1, &trace), AX_OK); /* rounded up */
    return trace;
}

static ax_event_ring *new_ring(ax_trace *trace, const char *name)
{
    ax_event_ring *ring;
    assert_int_equal(ax_trace_ring(trace, name, &ring), AX_OK);
    return ring;
}

static void add(ax_event_ring *ring, int first, int end)
{
    for (int i = first; i < end; i++)
        ax_event_add(ring, "kernel", "gemm", i, i + 0.5, i);
}

static void a_full_ring_keeps_the_newest_events(void **state)
{
    (void)state;
    ax_trace *trace = new_trace();
    ax_event_ring *ring = new_ring(trace, "compute");
    assert_null(ax_event_get(ring, 0));
    add(ring, 0, KEPT);
    assert_int_equal(ax_event_get(ring, 0)->value, 0);
    add(ring, KEPT, KEPT + 3);
    assert_int_equal(ax_event_count(ring), KEPT + 3);
    for (size_t i = 0; i < 3; i++)
        assert_null(ax_event_get(ring, i));
    for (size_t i = 3; i < KEPT + 3; i++)
        assert_int_equal(ax_event_get(ring, i)->value, (int)i);
    assert_null(ax_event_get(ring, KEPT + 3));
    ax_trace_destroy(&trace);
    assert_null(trace);
}

static void nothing_is_traced_without_a_ring(void **state)
{
    (void)state;
    ax_event_ring *ring;
    assert_int_equal(ax_trace_ring(NULL, "compute", &ring), AX_OK);
    assert_null(ring);
    add(ring, 0, 1);
    assert_int_equal(ax_event_count(ring), 0);
    ax_trace *trace;
    assert_int_equal(ax_trace_create(0, &trace), AX_ERR_USAGE);
}

static void *write_many(void *ring)
{
    add(ring, 0, MANY);
    return NULL;
}

/* Two threads, each with its ring, while a third counts: for the thread sanitizer. */
static void each_thread_has_its_own_ring(void **state)
{
    (void)state;
    ax_trace *trace = new_trace();
    ax_event_ring *ring[2] = {new_ring(trace, "compute"), new_ring(trace, "comm")};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, write_many, ring[i]), 0);
    for (size_t seen = 0; seen < MANY;) {
        size_t now = ax_event_count(ring[0]);
        assert_true(now >= seen);
        seen = now;
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ax_event_get(ring[i], MANY - 1)->value, MANY - 1);
    ax_trace_destroy(&trace);
}

static void events_are_exported(void **state)
{
    (void)state;
    char path[] = "/tmp/axonn-events-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    ax_trace *trace = new_trace();
    add(new_ring(trace, "compute"), 0, KEPT + 1);
    ax_event_add(new_ring(trace, "comm"), "all_gather", "h.0 \"q\"", 2, 3, 64);
    assert_int_equal(ax_trace_write(trace, 5, 1, path), AX_OK);
    json_t *root = json_load_file(path, 0, NULL), *e;
    assert_non_null(root);
    int names = 0, kernels = 0, gathers = 0;
    size_t i;
    json_array_foreach(json_object_get(root, "traceEvents"), i, e)
    {
        assert_int_equal(json_integer_value(json_object_get(e, "pid")), 5);
        const char *kind = json_string_value(json_object_get(e, "cat"));
        names += !kind;
        kernels += kind && !strcmp(kind, "kernel");
        if (kind && !strcmp(kind, "all_gather")) {
            gathers++;
            assert_float_equal(json_real_value(json_object_get(e, "ts")), 1e6, 0);
            assert_float_equal(json_real_value(json_object_get(e, "dur")), 1e6, 0);
            assert_string_equal(json_string_value(json_object_get(e, "name")), "h.0 _q_");
        }
    }
    assert_int_equal(names, 3); /* the rank and its threads */
    assert_int_equal(kernels, KEPT);
    assert_int_equal(gathers, 1);
    json_decref(root);
    assert_int_equal(ax_trace_write(trace, 5, 1, "/no/such/directory/file"), AX_ERR_DATA);
    ax_trace_destroy(&trace);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_ring_keeps_the_newest_events),
        cmocka_unit_test(nothing_is_traced_without_a_ring),
        cmocka_unit_test(each_thread_has_its_own_ring),
        cmocka_unit_test(events_are_exported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
