/* trace: TensorBoard event files, read by a second implementation of their formats (records, protobuf). */
#include "trace/tfevents.h"
#include "trace/trace_test.h"

#include <dirent.h>
#include <math.h>

/* The vectors of RFC 3720, B.4, and the usual check value. */
static void crc32c_equals_known_answers(void **state)
{
    (void)state;
    unsigned char bytes[32];
    assert_int_equal(ax_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(ax_crc32c("", 0), 0);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(ax_crc32c(bytes, sizeof bytes), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(ax_crc32c(bytes, sizeof bytes), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(ax_crc32c(bytes, sizeof bytes), 0x46dd794e);
}

/* ---- a reader ------------------------------------------------------------------------------------ */

/* Computes CRC-32C by polynomial division, most significant bit first, over the reflected input: another
 * algorithm than the library's. */
static uint32_t other_crc32c(const unsigned char *data, size_t n)
{
    uint64_t rest = 0xffffffff;
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint64_t top = rest >> 31 ^ (data[i] >> bit & 1);
            rest = rest << 1 & 0xffffffff;
            if (top & 1)
                rest ^= 0x1edc6f41;
        }
    uint32_t mirrored = 0;
    for (int bit = 0; bit < 32; bit++)
        mirrored |= (uint32_t)(rest >> bit & 1) << (31 - bit);
    return ~mirrored;
}

static void check_crc(const unsigned char *data, size_t n, const unsigned char *stored)
{
    uint32_t crc = other_crc32c(data, n), masked, have;
    masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    memcpy(&have, stored, 4);
    assert_int_equal(have, masked);
}

typedef struct bytes {
    const unsigned char *at, *end;
} bytes;

static uint64_t varint(bytes *b)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(b->at < b->end && shift < 64);
        unsigned char c = *b->at++;
        value |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80)
            return value;
    }
}

static bytes take(bytes *b, uint64_t n)
{
    assert_true(n <= (uint64_t)(b->end - b->at));
    bytes part = {b->at, b->at + n};
    b->at += n;
    return part;
}

/* Reads the next field; returns 0 at the end. Varints and fixed-size numbers are stored as an uint64. */
static int field(bytes *b, bytes *value, uint64_t *number)
{
    if (b->at == b->end)
        return 0;
    uint64_t key = varint(b);
    *number = 0;
    switch (key & 7) {
    case 0:
        *number = varint(b);
        break;
    case 1:
        memcpy(number, take(b, 8).at, 8);
        break;
    case 5:
        memcpy(number, take(b, 4).at, 4);
        break;
    case 2:
        *value = take(b, varint(b));
        break;
    default:
        fail_msg("wire type %d", (int)(key & 7));
    }
    return (int)(key >> 3);
}

typedef struct event {
    double wall_time;
    int64_t step;
    int values, restart;
    char version[32], tag[8][32];
    float value[8];
} event;

static void read_scalar(bytes b, event *e)
{
    bytes part;
    uint64_t number;
    assert_true(e->values < 8);
    for (int f; (f = field(&b, &part, &number));) {
        if (f == 1)
            snprintf(e->tag[e->values], 32, "%.*s", (int)(part.end - part.at), (const char *)part.at);
        else if (f == 2)
            memcpy(&e->value[e->values], &number, 4);
        else
            fail_msg("field %d in a value", f);
    }
    e->values++;
}

static event read_event(bytes b)
{
    event e = {0};
    bytes part, inner;
    uint64_t number;
    for (int f; (f = field(&b, &part, &number));) {
        if (f == 1)
            memcpy(&e.wall_time, &number, 8);
        else if (f == 2)
            e.step = (int64_t)number;
        else if (f == 3)
            snprintf(e.version, sizeof e.version, "%.*s", (int)(part.end - part.at), (const char *)part.at);
        else if (f == 5)
            while (field(&part, &inner, &number) == 1)
                read_scalar(inner, &e);
        else if (f == 7 && field(&part, &inner, &number) == 1)
            e.restart = (int)number;
        else
            fail_msg("field %d in an event", f);
    }
    return e;
}

/* Reads the only file of DIR/name. Returns the number of events. */
static int read_events(const char *dir, const char *name, event *events, int most)
{
    char path[600] = "", *data;
    size_t size;
    DIR *list = opendir(in(dir, name));
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list));)
        if (strstr(entry->d_name, "tfevents")) {
            assert_string_equal(path, "");
            snprintf(path, sizeof path, "%s/%s", in(dir, name), entry->d_name);
        }
    closedir(list);
    OK(ax_file_read(path, &data, &size));
    int n = 0;
    for (size_t at = 0; at < size; n++) {
        const unsigned char *record = (const unsigned char *)data + at;
        uint64_t length;
        assert_true(at + 16 <= size && n < most);
        memcpy(&length, record, 8);
        check_crc(record, 8, record + 8);
        assert_true(length <= size - at - 16);
        check_crc(record + 12, length, record + 12 + length);
        events[n] = read_event((bytes){record + 12, record + 12 + length});
        at += length + 16;
    }
    free(data);
    return n;
}

/* ---- what a run writes --------------------------------------------------------------------------- */

static void the_reader_can_fail(void **state)
{
    (void)state;
    assert_int_equal(other_crc32c((const unsigned char *)"123456789", 9), 0xe3069283);
    assert_int_not_equal(other_crc32c((const unsigned char *)"123456780", 9), 0xe3069283);
}

static void events_have_the_numbers_of_the_run(void **state)
{
    static const char *const tags[] = {"train/loss", "train/grad_norm", "train/lr", "perf/tokens_per_s",
                                       "perf/mfu"};
    ax_metrics_run run = quiet_run(*state);
    ax_metrics *metrics;
    event events[8];
    double before = ax_wall_clock();
    OK(ax_metrics_open(&run, 0, &metrics));
    add_steps(metrics, 1, 2);
    ax_metrics_step late = a_step(INT64_C(5000000000));
    late.loss = NAN;
    OK(ax_metrics_step_add(metrics, &late));
    OK(ax_metrics_eval_add(metrics, 300, 3.5, 1.25, 10, 1));
    OK(ax_metrics_eval_add(metrics, 301, 3.5, -1, 10, 1));
    ax_metrics_close(&metrics);

    assert_int_equal(read_events(*state, "tb", events, 8), 6);
    assert_string_equal(events[0].version, "brain.Event:2");
    for (int i = 1; i <= 2; i++) {
        ax_metrics_step s = a_step(i);
        const double values[] = {s.loss, s.grad_norm, s.lr, 4096 / (s.step_ms * 1e-3),
                                 0.2 / (s.step_ms * 1e-3)};
        assert_int_equal(events[i].step, i);
        assert_true(events[i].wall_time >= before && events[i].wall_time <= ax_wall_clock());
        assert_int_equal(events[i].values, 5);
        for (int k = 0; k < 5; k++) {
            assert_string_equal(events[i].tag[k], tags[k]);
            assert_true(fabs(events[i].value[k] - values[k]) <= 1e-6 * fabs(values[k]));
        }
    }
    assert_true(events[3].step == INT64_C(5000000000) && isnan(events[3].value[0]));
    assert_int_equal(events[4].step, 300);
    assert_string_equal(events[4].tag[0], "eval/loss");
    assert_string_equal(events[4].tag[1], "eval/bits_per_byte");
    assert_true(events[4].values == 2 && events[4].value[0] == 3.5f && events[4].value[1] == 1.25f);
    assert_int_equal(events[5].values, 1);
}

/* Without a known peak rate there is no MFU. A resumed run writes the step from which its events replace
 * earlier ones. */
static void a_resumed_run_marks_its_first_step(void **state)
{
    ax_metrics_run run = quiet_run(*state);
    ax_metrics *metrics;
    event events[8];
    run.peak_flops = 0;
    OK(ax_metrics_open(&run, 20, &metrics));
    add_steps(metrics, 21, 21);
    ax_metrics_close(&metrics);
    assert_int_equal(read_events(*state, "tb", events, 8), 3);
    assert_true(events[1].restart == 1 && events[1].step == 21 && events[1].values == 0);
    assert_true(events[2].restart == 0 && events[2].step == 21 && events[2].values == 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_equals_known_answers),
        cmocka_unit_test(the_reader_can_fail),
        TEST(events_have_the_numbers_of_the_run),
        TEST(a_resumed_run_marks_its_first_step),
    };
    return cmocka_run_group_tests_name("tfevents", tests, NULL, NULL);
}
