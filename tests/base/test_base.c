/* base: errors, buffers, files, random numbers, permutation, threads. */
#include "axonn/base.h"
#include "axonn/philox.h"

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void error_messages(void **state)
{
    (void)state;
    assert_int_equal(ax_fail(AX_ERR_DATA, "file %s is %d bytes short", "a.bin", 7), AX_ERR_DATA);
    ax_error_context("loading %s", "model");
    assert_string_equal(ax_error_message(), "loading model: file a.bin is 7 bytes short");
    assert_int_equal(ax_fail(AX_ERR_USAGE, "again: %s", ax_error_message()), AX_ERR_USAGE);
    assert_string_equal(ax_error_message(), "again: loading model: file a.bin is 7 bytes short");
}

/* Text beyond the room is cut, also when text is added repeatedly; nothing is written beyond the room. */
static void texts_are_cut_at_their_room(void **state)
{
    (void)state;
    char text[16];
    memset(text, '#', sizeof text);
    text[0] = 0;
    ax_text_add(text, 8, "%s", "");
    assert_string_equal(text, "");
    ax_text_add(text, 8, "%d-%d", 12, 34);
    assert_string_equal(text, "12-34");
    for (int i = 0; i < 3; i++) {
        ax_text_add(text, 8, "%s", "abcdefgh");
        assert_string_equal(text, "12-34ab");
    }
    for (size_t i = 8; i < sizeof text; i++)
        assert_int_equal(text[i], '#');
}

static void buffers_grow(void **state)
{
    (void)state;
    ax_buf buf = {0};
    for (int i = 0; i < 1000; i++)
        assert_int_equal(ax_buf_printf(&buf, "%d,", i), AX_OK);
    assert_int_equal(buf.size, strlen(buf.data));
    assert_int_equal(buf.size, 10 * 2 + 90 * 3 + 900 * 4);
    ax_buf_fini(&buf);
    assert_null(buf.data);
}

/* Random123's published known answers for philox4x32-10. */
static void philox_known_answers(void **state)
{
    (void)state;
    uint32_t out[4];
    ax_philox(0, 0, 0, out);
    const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    assert_memory_equal(out, zero, sizeof zero);
    ax_philox(~UINT64_C(0), ~UINT64_C(0), ~UINT64_C(0), out);
    const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    assert_memory_equal(out, ones, sizeof ones);
}

static void distributions(void **state)
{
    (void)state;
    enum { N = 100000 };
    uint64_t key = ax_rng_key(1, "test", 0);
    double um = 0, nm = 0, nv = 0, nk = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = ax_rng_uniform(key, i), z = ax_rng_normal(key, i);
        assert_true(u >= 0 && u < 1);
        um += u / N;
        nm += z / N;
        nv += z * z / N;
        nk += z * z * z * z / N;
    }
    /* Five standard errors of each estimator: sqrt(1/12/N), sqrt(1/N), sqrt(2/N), sqrt(96/N). */
    assert_true(fabs(um - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(nm) < 5 * sqrt(1.0 / N));
    assert_true(fabs(nv - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(nk - 3) < 5 * sqrt(96.0 / N));
    assert_true(ax_rng_key(1, "a", 0) != ax_rng_key(1, "b", 0));
    assert_true(ax_rng_key(1, "a", 0) != ax_rng_key(1, "a", 1));
    assert_true(ax_rng_key(1, "a", 0) != ax_rng_key(2, "a", 0));
}

/* Compares the series with the C library. Tolerance: one rounding to float, and 1e-12 for the series. */
static void normals_are_those_of_the_library(void **state)
{
    (void)state;
    enum { WORDS = 40000 };
    for (uint32_t i = 0; i < WORDS; i++) {
        uint32_t word[4], near = (i % 9 << 29) + (i / 9 % 7) - 3; /* ends, and eighths of a turn */
        ax_philox(3, 0, i, word);
        uint32_t w[2] = {i % 4 < 2 ? word[0] : near, i % 2 ? word[1] : near};
        float z[2];
        ax_philox_normal_pair(w[0], w[1], z);
        double radius = sqrt(-2 * log(((double)w[0] + 1) * 0x1p-32)), turn = (double)w[1] * 0x1p-32;
        double want[2] = {radius * cos(2 * M_PI * turn), radius * sin(2 * M_PI * turn)};
        for (int k = 0; k < 2; k++)
            if (!(fabs((double)z[k] - want[k]) <= 0x1p-24 * fabs(want[k]) + 1e-12 * radius))
                fail_msg("words %08x, %08x: %.9g, not %.17g", w[0], w[1], (double)z[k], want[k]);
    }
}

static void permutation_is_a_bijection(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 5, 16, 17, 100, 4096, 4097, 65537};
    for (size_t s = 0; s < AX_COUNT(sizes); s++)
        for (uint64_t key = 0; key < 3; key++) {
            unsigned char *seen = calloc(sizes[s], 1);
            uint64_t fixed = 0;
            for (uint64_t i = 0; i < sizes[s]; i++) {
                uint64_t j = ax_permute(key, sizes[s], i);
                assert_true(j < sizes[s]);
                assert_int_equal(seen[j]++, 0);
                fixed += i == j;
            }
            if (sizes[s] >= 100)
                assert_true(fixed < 10); /* a random permutation has one fixed point on average */
            free(seen);
        }
}

static void files(void **state)
{
    (void)state;
    char dir[] = "/tmp/axonn-base-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *sub, *file, *data;
    size_t size;
    assert_int_equal(ax_path_join(dir, "a/b//c", &sub), AX_OK);
    assert_int_equal(ax_mkdirs(sub), AX_OK);
    assert_int_equal(ax_mkdirs(sub), AX_OK);
    assert_int_equal(ax_path_join(sub, "f", &file), AX_OK);
    assert_int_equal(ax_file_write_atomic(file, "hello", 5), AX_OK);
    assert_int_equal(ax_file_write_atomic(file, "world!", 6), AX_OK);
    assert_int_equal(ax_file_read(file, &data, &size), AX_OK);
    assert_int_equal(size, 6);
    assert_string_equal(data, "world!");
    free(data);
    assert_int_equal(ax_mkdirs(file), AX_ERR_DATA);
    assert_int_equal(ax_file_read(sub, &data, &size), AX_ERR_DATA);
    assert_int_equal(ax_remove_tree(dir), AX_OK);
    assert_false(ax_path_exists(dir));
    assert_int_equal(ax_remove_tree(dir), AX_OK);
    assert_int_equal(ax_file_read(file, &data, &size), AX_ERR_DATA);
    free(sub);
    free(file);
}

static void directories(void **state)
{
    (void)state;
    static const char *const written[] = {"b", "B", ".hidden", "a"}, *const listed[] = {".hidden", "B", "a",
                                                                                        "b"};
    char dir[] = "/tmp/axonn-base-XXXXXX", *path;
    ax_strings names;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < AX_COUNT(written); i++) {
        assert_false(ax_dir_has(dir, written[i]));
        assert_int_equal(ax_path_join(dir, written[i], &path), AX_OK);
        assert_int_equal(ax_file_write_synced(path, "text", 4), AX_OK);
        assert_true(ax_dir_has(dir, written[i]));
        assert_int_equal(ax_dir_list(path, &names), AX_ERR_DATA);
        ax_strings_fini(&names);
        free(path);
    }
    assert_int_equal(ax_dir_list(dir, &names), AX_OK);
    assert_int_equal(names.count, AX_COUNT(listed));
    for (size_t i = 0; i < names.count; i++)
        assert_string_equal(names.items[i], listed[i]);
    ax_strings_fini(&names);
    assert_int_equal(ax_remove_tree(dir), AX_OK);
}

/* Both neighbours of a region fault: a child that touches one dies of a signal or a sanitizer's report. */
static void guard_pages(void **state)
{
    (void)state;
    ax_region region;
    assert_int_equal(ax_region_create(10000, &region), AX_OK);
    assert_int_equal(region.bytes, 12288);
    memset(region.base, 1, region.bytes);
    const ptrdiff_t bad[] = {-1, (ptrdiff_t)region.bytes};
    for (size_t i = 0; i < 2; i++) {
        pid_t child = fork();
        if (!child) {
            signal(SIGSEGV, SIG_DFL);
            *(volatile char *)(region.base + bad[i]) = 1;
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    ax_region_destroy(&region);
    assert_null(region.base);
}

static void words(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(ax_format_bytes(1536, text), "1.5 KiB");
    assert_string_equal(ax_format_seconds(0.412, text), "412 ms");
    assert_string_equal(ax_format_seconds(0.00035, text), "0.35 ms");
    assert_string_equal(ax_format_seconds(0, text), "0 ms");
    assert_string_equal(ax_format_seconds(192, text), "3m12s");
    assert_int_equal(ax_edit_distance("global_batch", "globalbatch"), 1);
    assert_int_equal(ax_edit_distance("", "abc"), 3);
    assert_int_equal(ax_edit_distance("josn", "json"), 1);
    assert_int_equal(ax_edit_distance("abcd", "badc"), 2);
}

static void *my_mask(void *out)
{
    assert_int_equal(sched_getaffinity(0, sizeof(cpu_set_t), out), 0);
    return NULL;
}

/* Starts two children from a thread that is bound to one processor: by pthread_create, which inherits the
 * binding, and by ax_thread_start, which does not. */
static void *start_from_one_processor(void *out)
{
    cpu_set_t one, *mask = out;
    pthread_t child;
    int first = 0;
    while (!CPU_ISSET(first, &mask[0]))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(pthread_create(&child, NULL, my_mask, &mask[1]), 0);
    pthread_join(child, NULL);
    assert_true(CPU_EQUAL(&mask[1], &one));
    assert_int_equal(ax_thread_start(&child, my_mask, &mask[2]), 0);
    pthread_join(child, NULL);
    return NULL;
}

static void threads_do_not_inherit_a_core(void **state)
{
    (void)state;
    cpu_set_t mask[3];
    pthread_t bound;
    my_mask(&mask[0]);
    assert_int_equal(ax_processors(), CPU_COUNT(&mask[0]));
    assert_int_equal(pthread_create(&bound, NULL, start_from_one_processor, mask), 0);
    pthread_join(bound, NULL);
    assert_true(CPU_EQUAL(&mask[2], &mask[0]));
}

/* A container has a host name of its own, and shares the processors of the kernel. Leaves the process in
 * namespaces of its own, if that is allowed.
 */
static void keys_of_hosts(void **state)
{
    (void)state;
    const uint64_t host = ax_host_key(), kernel = ax_kernel_key();
    assert_true(host != kernel && kernel == ax_kernel_key());
    if (unshare(CLONE_NEWUSER | CLONE_NEWUTS) || sethostname("another", 7))
        skip();
    assert_true(ax_host_key() != host && ax_kernel_key() == kernel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(error_messages),
                                       cmocka_unit_test(texts_are_cut_at_their_room),
                                       cmocka_unit_test(buffers_grow),
                                       cmocka_unit_test(philox_known_answers),
                                       cmocka_unit_test(distributions),
                                       cmocka_unit_test(normals_are_those_of_the_library),
                                       cmocka_unit_test(permutation_is_a_bijection),
                                       cmocka_unit_test(files),
                                       cmocka_unit_test(directories),
                                       cmocka_unit_test(guard_pages),
                                       cmocka_unit_test(words),
                                       cmocka_unit_test(threads_do_not_inherit_a_core),
                                       cmocka_unit_test(keys_of_hosts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
