/* axonn plan --top K, grid: auto: searches for a layout, and prints the best ones, why the first is the
 * first, and the command that runs it. */
#include "plan_search.h"

#include "axonn/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RIVALS = 3 }; /* that --explain compares with the first */

/* Returns true if a shell takes the word as it is. */
static bool is_plain(const char *word)
{
    return *word &&
           strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,%+-@") ==
               strlen(word);
}

static ax_status add_word(ax_buf *out, const char *word)
{
    if (is_plain(word))
        return ax_buf_printf(out, " %s", word);
    AX_TRY(ax_buf_printf(out, " '"));
    for (; *word; word++)
        AX_TRY(*word == '\'' ? ax_buf_printf(out, "'\\''") : ax_buf_add(out, word, 1));
    return ax_buf_printf(out, "'");
}

/* Returns true if one of the words gives the key of `argument`, KEY=VALUE, or all sizes of the grid in place
 * of grid=auto or grid={…}. */
static bool gives(const char *words, const char *argument)
{
    const size_t key = strcspn(argument, "=");
    bool found = !strncmp(argument, "grid=", key + 1);
    for (const char *w = words; *w && !found; w += strcspn(w, " "), w += *w == ' ')
        found = !strncmp(w, argument, key) && w[key] == '=';
    return found;
}

/* Makes the command that trains with the keys `words`: those of the plan, where the search gave no others. */
static ax_status make_command(const cli_plan_search *how, const ax_config *config,
                              const ax_search_options *by, const char *words, ax_buf *out)
{
    const ax_strings *given = &how->args->overrides;
    AX_TRY(ax_buf_printf(out, "axonn train"));
    AX_TRY(add_word(out, how->args->path));
    AX_TRY(ax_buf_printf(out, " --ranks %d", by->ranks));
    for (size_t i = 0; i < given->count; i++)
        if (!gives(words, given->items[i]))
            AX_TRY(add_word(out, given->items[i]));
    if (ax_option_typed(config->set, "grid.order") && !strstr(out->data, " grid.order="))
        AX_TRY(ax_buf_printf(out, " grid.order=%s", config->grid.order)); /* it was in grid={…} */
    return ax_buf_printf(out, " %s", words);
}

/* ---- rivals ---------------------------------------------------------------------------------------- */

/* What one of the best costs more than the first, in seconds, and, below 0, less. */
typedef struct rival {
    int number;    /* among the best, from 2 */
    double slower; /* part of the first's time */
    double computed, bubble;
    ax_axes_seconds along[2 * AX_CANDIDATE_AXES];
    int n_along;
} rival;

/* Returns the number of rivals that are compared with the first. */
static int rivals(const ax_search *search) { return (int)ax_min(ax_search_count(search) - 1, RIVALS); }

/* Returns how many of the best are listed. */
static int listed(const ax_search *search, const cli_plan_search *how)
{
    return (int)ax_min(ax_search_count(search), how->explain ? ax_max(how->top, RIVALS + 1) : how->top);
}

/* Adds what a layout waits along its axes, times `sign`. */
static void add_along(rival *r, const ax_candidate *c, double sign)
{
    for (int i = 0; i < c->n_along; i++) {
        int k = 0;
        while (k < r->n_along && strcmp(r->along[k].axes, c->along[i].axes) != 0)
            k++;
        if (k == r->n_along) {
            r->along[r->n_along++] = c->along[i];
            r->along[k].seconds = 0;
        }
        r->along[k].seconds += sign * c->along[i].seconds;
    }
}

/* Compares the i-th of the best (0: the first) with the first. */
static rival rival_of(const ax_search *search, int i)
{
    const ax_candidate *first = ax_search_get(search, 0), *c = ax_search_get(search, i);
    rival r = {.number = i + 1,
               .slower = c->seconds / first->seconds - 1,
               .computed = c->computed - first->computed,
               .bubble = c->bubble - first->bubble};
    add_along(&r, c, 1);
    add_along(&r, first, -1);
    return r;
}

/* ---- text ------------------------------------------------------------------------------------------ */

static void print_row(int number, const char *step, const char *waits, const char *bubble, const char *memory,
                      const char *keys)
{
    char text[16] = "";
    if (number)
        snprintf(text, sizeof text, "%d", number);
    printf("%3s  %9s  %9s  %9s  %10s  %s\n", text, step, waits, bubble, memory, keys);
}

static ax_status print_table(const ax_search *search, int n)
{
    print_row(0, "step", "waits", "bubble", "memory", "keys");
    for (int i = 0; i < n; i++) {
        const ax_candidate *c = ax_search_get(search, i);
        char step[32], waits[32], bubble[32], memory[32];
        ax_buf words = {0};
        AX_TRY(ax_search_words(search, c, &words));
        print_row(i + 1, ax_format_seconds(c->seconds, step), ax_format_seconds(c->exposed, waits),
                  ax_format_seconds(c->bubble, bubble), ax_format_bytes((double)c->memory, memory),
                  words.data);
        ax_buf_fini(&words);
    }
    return AX_OK;
}

static ax_status print_sent(ax_search *search, const ax_candidate *c)
{
    ax_candidate_sent *sent;
    int n;
    AX_TRY(ax_search_explain(search, c, &sent, &n));
    printf("the first: a rank of stage %d computes longest; in a step it sends\n", c->stage);
    for (int i = 0; i < n; i++) {
        char bytes[32], seconds[32];
        printf("  %-14s along %-10s %8.0f times, %10s in all, %s if alone\n", ax_coll_name(sent[i].coll),
               sent[i].axes, sent[i].calls, ax_format_bytes(sent[i].bytes, bytes),
               ax_format_seconds(sent[i].seconds, seconds));
    }
    free(sent);
    return AX_OK;
}

static void print_more(const char *what, double seconds)
{
    char text[32];
    if (fabs(seconds) >= 5e-4)
        printf(", %s %s%s", what, seconds < 0 ? "-" : "+", ax_format_seconds(fabs(seconds), text));
}

static void print_rival(const rival *r)
{
    char what[AX_AXISSET_TEXT + 32];
    printf("%d is %.2f %% slower", r->number, 100 * r->slower);
    print_more("kernels", r->computed);
    print_more("waiting for other stages", r->bubble);
    for (int i = 0; i < r->n_along; i++) {
        snprintf(what, sizeof what, "waiting along %s", r->along[i].axes);
        print_more(what, r->along[i].seconds);
    }
    printf("\n");
}

static ax_status explain(ax_search *search)
{
    const int n = rivals(search);
    AX_TRY(print_sent(search, ax_search_get(search, 0)));
    for (int i = 1; i <= n; i++) {
        const rival r = rival_of(search, i);
        print_rival(&r);
    }
    return AX_OK;
}

/* Returns how long the first takes for the tokens that the user asked about; 0: for none. */
static double seconds_of_all(const ax_search *search, const ax_config *config, const cli_plan_search *how)
{
    const double tokens = (double)config->train.global_batch * (double)config->model.seq_len;
    return tokens > 0 ? (double)how->tokens / tokens * ax_search_get(search, 0)->seconds : 0;
}

static ax_status print_text(ax_search *search, const ax_config *config, const ax_search_options *by,
                            const cli_plan_search *how, const char *command)
{
    const double all = seconds_of_all(search, config, how);
    char text[32];
    printf("%s: the best layouts; ranks: %d, on %s; step: time of a step; waits: of that, for collectives; "
           "memory: "
           "of a rank\n",
           how->args->path, by->ranks, by->machine->name);
    AX_TRY(print_table(search, listed(search, how)));
    if (ax_search_count(search) < how->top)
        printf("no other layout was found that fits and has another time or memory\n");
    if (how->explain)
        AX_TRY(explain(search));
    if (all > 0)
        printf("%lld tokens: %s\n", (long long)how->tokens, ax_format_seconds(all, text));
    printf("%s\n", command);
    return AX_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

static json_t *along_json(const ax_axes_seconds *along, int n)
{
    json_t *object = json_object();
    for (int i = 0; i < n && object; i++)
        json_object_set_new(object, along[i].axes, cli_json_number(along[i].seconds * 1e3));
    return object;
}

static json_t *candidate_json(const ax_search *search, const ax_candidate *c)
{
    ax_buf words = {0};
    json_t *json = NULL;
    if (ax_search_words(search, c, &words) == AX_OK)
        json = json_pack("{s:s, s:o, s:o, s:o, s:o, s:I, s:I}", "keys", words.data, "step_ms",
                         cli_json_number(c->seconds * 1e3), "kernels_ms", cli_json_number(c->computed * 1e3),
                         "comm_exposed_ms", along_json(c->along, c->n_along), "pipe_wait_ms",
                         cli_json_number(c->bubble * 1e3), "mem_planned", (json_int_t)c->memory,
                         "host_memory", (json_int_t)c->host);
    ax_buf_fini(&words);
    return json;
}

static json_t *rivals_json(const ax_search *search)
{
    json_t *list = json_array();
    for (int i = 1; i <= rivals(search) && list; i++) {
        const rival r = rival_of(search, i);
        json_array_append_new(list, json_pack("{s:i, s:f, s:o, s:o, s:o}", "number", r.number, "slower",
                                              r.slower, "kernels_ms", cli_json_number(r.computed * 1e3),
                                              "comm_exposed_ms", along_json(r.along, r.n_along),
                                              "pipe_wait_ms", cli_json_number(r.bubble * 1e3)));
    }
    return list;
}

/* Adds why the first is the first. */
static ax_status explain_json(ax_search *search, json_t *out)
{
    ax_candidate_sent *sent;
    int n;
    AX_TRY(ax_search_explain(search, ax_search_get(search, 0), &sent, &n));
    json_t *list = json_array();
    for (int i = 0; i < n && list; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:f, s:f, s:f}", "collective", ax_coll_name(sent[i].coll),
                                        "axes", sent[i].axes, "calls", sent[i].calls, "bytes", sent[i].bytes,
                                        "ms", sent[i].seconds * 1e3));
    json_object_set_new(out, "collectives", list);
    json_object_set_new(out, "rivals", rivals_json(search));
    free(sent);
    return AX_OK;
}

static ax_status print_json(ax_search *search, const ax_config *config, const ax_search_options *by,
                            const cli_plan_search *how, const char *command)
{
    const double all = seconds_of_all(search, config, how);
    json_t *list = json_array();
    for (int i = 0; i < listed(search, how) && list; i++)
        json_array_append_new(list, candidate_json(search, ax_search_get(search, i)));
    json_t *json = json_pack("{s:s, s:i, s:I, s:I, s:o, s:s}", "machine", by->machine->name, "ranks",
                             by->ranks, "ranked", (json_int_t)ax_search_ranked(search), "replays",
                             (json_int_t)ax_search_replays(search), "best", list, "command", command);
    if (json && all > 0)
        json_object_set_new(json, "seconds", cli_json_number(all));
    ax_status status = how->explain && json ? explain_json(search, json) : AX_OK;
    if (status == AX_OK)
        return cli_print_json(json);
    json_decref(json);
    return status;
}

ax_status cli_search_layout(ax_config *config, const ax_search_options *options, const cli_plan_search *how)
{
    ax_search *search;
    ax_buf words = {0}, command = {0};
    AX_TRY(ax_search_create(config, options, &search));
    ax_status status = ax_search_words(search, ax_search_get(search, 0), &words);
    if (status == AX_OK)
        status = make_command(how, config, options, words.data, &command);
    if (status == AX_OK)
        status = how->json ? print_json(search, config, options, how, command.data)
                           : print_text(search, config, options, how, command.data);
    ax_buf_fini(&words);
    ax_buf_fini(&command);
    ax_search_destroy(&search);
    return status;
}
