/* Agreement of ranks: one error message on all ranks (ax_comm_agree), one text (ax_comm_share_text). */
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The ranks that fail, and the message expected on all ranks. */
typedef struct plan {
    unsigned failing; /* bit per rank */
    bool same_words;
    const char *expect;
} plan;

static ax_status maybe_fail(ax_comm *world, const plan *p)
{
    int rank = ax_comm_rank(world);
    if (!(p->failing >> rank & 1))
        return AX_OK;
    return p->same_words ? ax_fail(AX_ERR_DATA, "no such file")
                         : ax_fail(rank == 1 ? AX_ERR_MEMORY : AX_ERR_USAGE, "trouble of %d", rank);
}

static ax_status agree(ax_comm *world, void *arg)
{
    const plan *p = arg;
    ax_status status = ax_comm_agree(world, maybe_fail(world, p));
    EXPECT((status == AX_OK) == !p->failing);
    if (status == AX_OK)
        return AX_OK;
    EXPECT(!strcmp(ax_error_message(), p->expect) && ax_error_is_shared() && ax_error_status() == status);
    EXPECT(status == (p->same_words ? AX_ERR_DATA : p->failing & 1 ? AX_ERR_USAGE : AX_ERR_MEMORY));
    /* A later error is not shared, and the world still works. */
    (void)ax_fail(AX_ERR_DATA, "another");
    EXPECT(!ax_error_is_shared());
    return ax_comm_agree(world, AX_OK);
}

static void all_ranks_return_the_same_message(void **state)
{
    (void)state;
    const plan plans[] = {{0, false, ""},
                          {1 << 1, false, "rank 1: trouble of 1"},
                          {1 << 0 | 1 << 2, false, "rank 0: trouble of 0"},
                          {7, false, "rank 0: trouble of 0"},
                          {1 << 2, true, "rank 2: no such file"},
                          {7, true, "no such file"}};
    for (size_t i = 0; i < AX_COUNT(plans); i++)
        assert_ranks(3, agree, &plans[i]);
}

static ax_status serial(ax_comm *world, void *arg)
{
    (void)arg;
    EXPECT(ax_comm_agree(world, ax_fail(AX_ERR_DATA, "mine")) == AX_ERR_DATA);
    EXPECT(!strcmp(ax_error_message(), "mine"));
    return ax_comm_agree(world, AX_OK);
}

static void one_rank_agrees_with_itself(void **state)
{
    (void)state;
    assert_ranks(1, serial, NULL);
}

/* ax_comm_threads_run does not prefix a shared failure with a second rank number. */
static ax_status fail_shared(ax_comm *world, void *arg)
{
    return ax_comm_agree(world, maybe_fail(world, arg));
}

static void threads_run_returns_a_shared_failure_unchanged(void **state)
{
    (void)state;
    plan p = {1 << 1, false, NULL};
    assert_int_equal(ax_comm_threads_run(3, fail_shared, &p), AX_ERR_MEMORY);
    assert_string_equal(ax_error_message(), "rank 1: trouble of 1");
}

/* After a rank has failed and returned, ax_comm_agree fails on the others; it does not hang. */
static ax_status leave(ax_comm *world, void *arg)
{
    (void)arg;
    if (ax_comm_rank(world) == 1)
        return ax_fail(AX_ERR_NUMERIC, "gone");
    ax_status status = ax_comm_agree(world, AX_OK);
    EXPECT(status == AX_ERR_COMM && !ax_error_is_shared());
    status = ax_comm_agree(world, ax_fail(AX_ERR_DATA, "mine"));
    EXPECT(status == AX_ERR_DATA && !strcmp(ax_error_message(), "mine"));
    return AX_OK;
}

static void agree_fails_after_a_rank_has_left(void **state)
{
    (void)state;
    assert_int_equal(ax_comm_threads_run(3, leave, NULL), AX_ERR_NUMERIC);
    assert_string_equal(ax_error_message(), "rank 1: gone");
}

static ax_status texts(ax_comm *world, void *arg)
{
    (void)arg;
    static const char *const words[] = {"a path", "", NULL};
    for (int root = 0; root < ax_comm_size(world); root++)
        for (size_t i = 0; i < AX_COUNT(words); i++) {
            char mine[] = "mine", own[16], *text = mine;
            if (ax_comm_rank(world) == root)
                text = words[i] ? strcpy(own, words[i]) : NULL;
            AX_TRY(ax_comm_share_text(world, root, &text));
            EXPECT(!text == !words[i] && (!text || !strcmp(text, words[i])));
            if (ax_comm_rank(world) != root)
                free(text);
        }
    return AX_OK;
}

static void all_ranks_get_the_text_of_one_rank(void **state)
{
    (void)state;
    assert_ranks(1, texts, NULL);
    assert_ranks(3, texts, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_return_the_same_message),
        cmocka_unit_test(one_rank_agrees_with_itself),
        cmocka_unit_test(threads_run_returns_a_shared_failure_unchanged),
        cmocka_unit_test(agree_fails_after_a_rank_has_left),
        cmocka_unit_test(all_ranks_get_the_text_of_one_rank),
    };
    return cmocka_run_group_tests_name("comm.agree", tests, NULL, NULL);
}
