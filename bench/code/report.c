#include "report.h"

#include "lines.h"
#include "run.h"
#include "score.h"

#include <stdlib.h>
#include <string.h>

/* What is printed, and how. */
typedef struct report {
    const ax_ints *k;
    bool json;
} report;

/* The samples of one prompt. */
typedef struct tally {
    const char *id, *kind, *way;
    int64_t n, built, passed;
} tally;

typedef struct tallies {
    tally *item;
    size_t n;
} tallies;

static ax_status count_line(tallies *all, const json_t *line)
{
    const char *id = line_text(line, "id"), *result = line_text(line, "result");
    size_t i = 0;
    while (i < all->n && strcmp(all->item[i].id, id) != 0)
        i++;
    if (i == all->n) {
        AX_TRY(ax_list_grow(&all->item, all->n, sizeof *all->item));
        all->item[all->n++] =
            (tally){.id = id, .kind = line_text(line, "kind"), .way = line_text(line, "way")};
    }
    all->item[i].n++;
    all->item[i].built += strcmp(result, outcome_name(NOT_BUILT)) != 0;
    all->item[i].passed += strcmp(result, outcome_name(PASSED)) == 0;
    return AX_OK;
}

/* A group of prompts: all, those of a kind, or those of a way. */
typedef struct group {
    const char *kind, *way;
} group;

static bool in_group(const group *g, const tally *t)
{
    return (!g->kind || strcmp(g->kind, t->kind) == 0) && (!g->way || strcmp(g->way, t->way) == 0);
}

/* Computes a group's build@k and pass@k. Returns the number of its prompts; 0 if there are none with k
 * samples. */
static int64_t score_group(const tallies *all, const group *g, int64_t k, score *build, score *pass)
{
    double *value = calloc(2 * all->n, sizeof *value);
    int64_t n = 0, few = 0;
    for (size_t i = 0; value && i < all->n; i++) {
        const tally *t = &all->item[i];
        if (!in_group(g, t))
            continue;
        few += t->n < k;
        if (few)
            continue;
        value[n] = score_at_k(t->n, t->built, k);
        value[all->n + (size_t)n++] = score_at_k(t->n, t->passed, k);
    }
    if (few || !value)
        n = 0;
    if (n) {
        *build = score_of(value, n);
        *pass = score_of(value + all->n, n);
    }
    free(value);
    return n;
}

static ax_status print_group(const report *r, const tallies *all, const group *g)
{
    const char *name = g->kind ? g->kind : g->way ? g->way : "all";
    for (size_t i = 0; i < r->k->count; i++) {
        const int64_t k = r->k->items[i];
        score build, pass;
        const int64_t n = score_group(all, g, k, &build, &pass);
        if (n && r->json)
            AX_TRY(line_print(stdout, json_pack("{s:s, s:s?, s:s?, s:I, s:I, s:f, s:[ff], s:f, s:[ff]}",
                                                "group", name, "kind", g->kind, "way", g->way, "prompts",
                                                (json_int_t)n, "k", (json_int_t)k, "build", build.mean,
                                                "build_interval", build.low, build.high, "pass", pass.mean,
                                                "pass_interval", pass.low, pass.high)));
        else if (n)
            printf("%-14s %7lld %5lld   %.3f  %.3f to %.3f   %.3f  %.3f to %.3f\n", i ? "" : name,
                   (long long)n, (long long)k, build.mean, build.low, build.high, pass.mean, pass.low,
                   pass.high);
        else if (!r->json)
            printf("%-14s         %5lld   a prompt has fewer samples\n", i ? "" : name, (long long)k);
    }
    return AX_OK;
}

/* Prints a group for each value of a column (kind or way), in the order of their first prompts. */
static ax_status print_groups(const report *r, const tallies *all, bool kinds)
{
    for (size_t i = 0; i < all->n; i++) {
        const group g = {.kind = kinds ? all->item[i].kind : NULL, .way = kinds ? NULL : all->item[i].way};
        bool first = true;
        for (size_t j = 0; j < i && first; j++)
            first = !in_group(&g, &all->item[j]);
        if (first)
            AX_TRY(print_group(r, all, &g));
    }
    return AX_OK;
}

ax_status report_scores(const char *path, const lines *results, const ax_ints *k, bool json)
{
    const report r = {k, json};
    tallies all = {0};
    ax_status status = AX_OK;
    for (size_t i = 0; i < results->n && status == AX_OK; i++) {
        const json_t *line = results->item[i];
        if (!line)
            continue;
        if (!line_text(line, "id") || !line_text(line, "kind") || !line_text(line, "way") ||
            !line_text(line, "result"))
            status = ax_fail(AX_ERR_DATA, "%s:%zu: not a result of judge run", path, i + 1);
        else
            status = count_line(&all, line);
    }
    if (status == AX_OK && !all.n)
        status = ax_fail(AX_ERR_DATA, "%s has no results", path);
    if (status == AX_OK && !json)
        printf("%-14s %7s %5s   %-5s  %-16s %-5s  %s\n", "", "prompts", "k", "build", "95 %", "pass", "95 %");
    if (status == AX_OK)
        status = print_groups(&r, &all, true);
    if (status == AX_OK)
        status = print_groups(&r, &all, false);
    if (status == AX_OK)
        status = print_group(&r, &all, &(group){NULL, NULL});
    free(all.item);
    return status;
}
