/* axonn ckpt ls | verify | diff: lists, verifies and compares checkpoints and models. */
#include "verb.h"

#include "axonn/ckpt.h"
#include "axonn/model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- ls ------------------------------------------------------------------------------------------ */

typedef struct ls_args {
    char *run;
    bool verify, json;
} ls_args;

static const ax_option ls_options[] = {
    {"RUN", AX_OPT_PATH, offsetof(ls_args, run), .required = true,
     .help = "directory of the run, as in its key run.dir"},
    {"verify", AX_OPT_BOOL, offsetof(ls_args, verify), "false",
     .help = "also read every file of each checkpoint and compare it with its checksum in "
             "training/manifest.json"},
    {"json", AX_OPT_BOOL, offsetof(ls_args, json), "false", .help = "print the result as one JSON object"},
};

/* Describes a checkpoint in JSON. "verified" is false if the checkpoint is damaged, else true if its files
 * were compared with their checksums, else null. */
static json_t *info_json(const ax_ckpt_info *info, bool compared)
{
    json_t *verified = info->damage ? json_false() : compared ? json_true() : json_null();
    return json_pack("{s:I, s:s, s:I, s:f, s:b, s:o, s:s?}", "step", (json_int_t)info->step, "dir", info->dir,
                     "bytes", (json_int_t)info->bytes, "time", info->time, "latest", info->latest, "verified",
                     verified, "damage", info->damage);
}

static ax_status ls_json(const ls_args *a, const ax_ckpt_list *list)
{
    json_t *items = json_array();
    for (int i = 0; i < list->n; i++)
        json_array_append_new(items, info_json(&list->item[i], a->verify));
    return cli_print_json(json_pack("{s:s, s:o}", "run", a->run, "checkpoints", items));
}

static void print_info(const ax_ckpt_info *info, bool compared)
{
    char bytes[32], when[32] = "-";
    time_t seconds = (time_t)info->time;
    struct tm local;
    if (info->serial && localtime_r(&seconds, &local))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    printf("%10" PRId64 "  %10s  %-19s  %s%s%s%s\n", info->step, ax_format_bytes((double)info->bytes, bytes),
           when, info->latest ? "latest" : "", info->latest && (compared || info->damage) ? ", " : "",
           info->damage ? "damaged: "
           : compared   ? "verified"
                        : "",
           info->damage ? info->damage : "");
}

/* Checks that `dir` is the directory of a run: it must contain config.yaml or lock, which a run creates when
 * it starts, or ckpt/, which it creates when it first saves. */
static ax_status check_run(const char *dir)
{
    static const char *const entries[] = {"ckpt", "config.yaml", "lock"};
    bool found = false;
    AX_CHECK(ax_path_exists(dir), AX_ERR_DATA, "no such file or directory: %s", dir);
    AX_CHECK(ax_path_is_dir(dir), AX_ERR_DATA, "%s is a file; give a run directory", dir);
    for (size_t i = 0; i < AX_COUNT(entries) && !found; i++)
        found = ax_dir_has(dir, entries[i]);
    AX_CHECK(found, AX_ERR_DATA,
             "%s is not a run directory, which has config.yaml, and checkpoints in ckpt/; give the run.dir "
             "of a run",
             dir);
    return AX_OK;
}

static ax_status run_ls(const void *raw)
{
    const ls_args *a = raw;
    ax_ckpt_list *list;
    AX_TRY(check_run(a->run));
    AX_TRY(ax_ckpt_list_create(a->run, a->verify, &list));
    ax_status status = AX_OK;
    if (a->json)
        status = ls_json(a, list);
    else if (list->n)
        printf("      step        size  saved                state\n");
    else
        ax_log(AX_LOG_INFO, "%s has no checkpoints", a->run);
    for (int i = 0; !a->json && i < list->n; i++)
        print_info(&list->item[i], a->verify);
    ax_ckpt_list_destroy(&list);
    return status;
}

const cli_verb verb_ckpt_ls = {
    .name = "ckpt ls",
    .summary = "list the checkpoints of a run, newest first",
    .details =
        "The exit code is 4 if the directory is not that of a run, 0 if the run has no checkpoint yet.",
    .examples = "axonn ckpt ls runs/name --verify",
    .options = ls_options,
    .option_count = AX_COUNT(ls_options),
    .args_size = sizeof(ls_args),
    .run = run_ls,
};

/* ---- verify -------------------------------------------------------------------------------------- */

typedef struct verify_args {
    ax_strings paths;
    bool json;
} verify_args;

static const ax_option verify_options[] = {
    {"PATH", AX_OPT_STRINGS, offsetof(verify_args, paths), .required = true,
     .help = "checkpoints, runs (checks all their checkpoints), model directories or .safetensors files"},
    {"json", AX_OPT_BOOL, offsetof(verify_args, json), "false",
     .help = "print the results as JSON, one object per checkpoint"},
};

static ax_status report_json(const char *path, const ax_ckpt_report *r)
{
    json_t *faults = json_array();
    for (int i = 0; i < r->n; i++)
        json_array_append_new(faults,
                              json_pack("{s:s, s:s}", "file", r->fault[i].file, "what", r->fault[i].what));
    return cli_print_json(json_pack("{s:s, s:b, s:b, s:i, s:I, s:o, s:s?}", "path", path, "good", r->n == 0,
                                    "manifest", r->manifest, "files", r->files, "bytes", (json_int_t)r->bytes,
                                    "faults", faults, "remark", r->remark));
}

static void print_report(const char *path, const ax_ckpt_report *r)
{
    char bytes[32];
    if (r->n == 0)
        printf("%s: good, %d file%s, %s%s\n", path, r->files, r->files == 1 ? "" : "s",
               ax_format_bytes((double)r->bytes, bytes),
               r->manifest ? "" : " (structure only: it has no checksums)");
    else
        printf("%s: %d of %d files damaged\n", path, r->n, r->files);
    for (int i = 0; i < r->n; i++)
        printf("  %s\n", r->fault[i].what);
    if (r->remark)
        printf("  %s\n", r->remark);
}

typedef struct tally {
    int verified, faults; /* `verified`: number of checkpoints; `faults`: number of damaged files */
} tally;

/* Verifies one checkpoint. Does not count a checkpoint of a run (`of_run`) that the run removed meanwhile. */
static ax_status verify_one(const verify_args *a, const char *path, bool of_run, tally *t)
{
    ax_ckpt_report *report;
    ax_status status = ax_ckpt_verify(path, &report);
    bool removed = of_run && !ax_path_exists(path);
    if (status == AX_OK && !removed) {
        t->verified++;
        t->faults += report->n;
        if (a->json)
            status = report_json(path, report);
        else
            print_report(path, report);
    }
    ax_ckpt_report_destroy(&report);
    return removed ? AX_OK : status;
}

/* Verifies all checkpoints of the run `path`. If `path` holds no checkpoints, verifies `path` itself: a
 * checkpoint, a model directory or a .safetensors file. If a training run has replaced all listed checkpoints
 * meanwhile, lists its checkpoints again. */
static ax_status verify_path(const verify_args *a, const char *path, tally *t)
{
    int before = t->verified;
    while (t->verified == before) {
        ax_ckpt_list *list;
        AX_TRY(ax_ckpt_list_create(path, false, &list));
        ax_status status = list->n ? AX_OK : verify_one(a, path, false, t);
        for (int i = 0; i < list->n && status == AX_OK; i++)
            status = verify_one(a, list->item[i].dir, true, t);
        ax_ckpt_list_destroy(&list);
        AX_TRY(status);
    }
    return AX_OK;
}

static ax_status run_verify(const void *raw)
{
    const verify_args *a = raw;
    tally t = {0};
    for (size_t i = 0; i < a->paths.count; i++)
        AX_TRY(verify_path(a, a->paths.items[i], &t));
    AX_CHECK(!t.faults, AX_ERR_DATA, "found %d damaged file%s, which standard output lists", t.faults,
             t.faults == 1 ? "" : "s");
    return AX_OK;
}

const cli_verb verb_ckpt_verify = {
    .name = "ckpt verify",
    .summary = "check every file of a checkpoint against its checksum",
    .details =
        "A model directory without a manifest has no checksums. Only its structure is checked then: the\n"
        "headers of its shards, their sizes, and its index. The exit code is 4 if a file is damaged.",
    .examples = "axonn ckpt verify runs/name\naxonn ckpt verify runs/name/ckpt/step-1000",
    .options = verify_options,
    .option_count = AX_COUNT(verify_options),
    .args_size = sizeof(verify_args),
    .run = run_verify,
};

/* ---- diff ---------------------------------------------------------------------------------------- */

typedef struct diff_args {
    char *a, *b;
    bool all, json;
} diff_args;

static const ax_option diff_options[] = {
    {"A", AX_OPT_PATH, offsetof(diff_args, a), .required = true,
     .help = "a checkpoint, a run (its newest checkpoint), a model directory or a .safetensors file"},
    {"B", AX_OPT_PATH, offsetof(diff_args, b), .required = true,
     .help = "what A is compared with: a checkpoint, a run (its newest checkpoint), a model directory or a "
             ".safetensors file"},
    {"all", AX_OPT_BOOL, offsetof(diff_args, all), "false",
     .help = "also print the arrays that are equal in A and B"},
    {"json", AX_OPT_BOOL, offsetof(diff_args, json), "false", .help = "print the result as one JSON object"},
};

static const char *const kinds[] = {"equal",         "values differ", "shapes differ",
                                    "dtypes differ", "only in A",     "only in B"};

static json_t *row_json(const ax_ckpt_diff_row *row)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:s?, s:s?}", "key", row->key, "kind", kinds[row->kind],
                     "elements", (json_int_t)row->elements, "differing", (json_int_t)row->differing,
                     "max_abs", cli_json_number(row->max_abs), "max_rel", cli_json_number(row->max_rel), "a",
                     row->a, "b", row->b);
}

static ax_status diff_json(const diff_args *a, const ax_ckpt_diff *diff)
{
    json_t *rows = json_array();
    for (int i = 0; i < diff->n; i++)
        if (a->all || diff->row[i].kind != AX_DIFF_NONE)
            json_array_append_new(rows, row_json(&diff->row[i]));
    return cli_print_json(json_pack("{s:s, s:s, s:b, s:i, s:i, s:o}", "a", a->a, "b", a->b, "equal",
                                    diff->differing == 0, "compared", diff->n, "differing", diff->differing,
                                    "rows", rows));
}

/* Returns the width of the column of array names: at least 44 characters. */
static int name_width(const ax_ckpt_diff *diff)
{
    size_t width = 44;
    for (int i = 0; i < diff->n; i++)
        width = strlen(diff->row[i].key) > width ? strlen(diff->row[i].key) : width;
    return (int)width;
}

static void print_row(const ax_ckpt_diff_row *row, int width)
{
    printf("%-*s %s", width, row->key, kinds[row->kind]);
    if (row->a || row->b)
        printf(": %s, %s", row->a ? row->a : "-", row->b ? row->b : "-");
    else if (row->kind == AX_DIFF_VALUES)
        printf(": %" PRId64 " of %" PRId64 ", by at most %.6g, relatively %.3g", row->differing,
               row->elements, row->max_abs, row->max_rel);
    printf("\n");
}

/* Compares the arrays of the checkpoints or models A and B. Names match with or without the key prefix of any
 * model family, such as "model.". */
static ax_status create_diff(const diff_args *a, ax_ckpt_diff **out)
{
    int n = 0;
    while (ax_family_name(n))
        n++;
    const char **prefixes;
    const ax_family *family;
    AX_TRY(ax_calloc((size_t)n, sizeof *prefixes, &prefixes));
    ax_status status = AX_OK;
    for (int i = 0; i < n && status == AX_OK; i++) {
        status = ax_family_find(ax_family_name(i), &family);
        prefixes[i] = status == AX_OK ? ax_family_prefix(family) : NULL;
    }
    if (status == AX_OK)
        status = ax_ckpt_diff_create(a->a, a->b, prefixes, n, out);
    free(prefixes);
    return status;
}

static ax_status run_diff(const void *raw)
{
    const diff_args *a = raw;
    ax_ckpt_diff *diff;
    ax_status status = AX_OK;
    AX_TRY(create_diff(a, &diff));
    int width = name_width(diff);
    if (a->json)
        status = diff_json(a, diff);
    for (int i = 0; !a->json && i < diff->n; i++)
        if (a->all || diff->row[i].kind != AX_DIFF_NONE)
            print_row(&diff->row[i], width);
    if (!a->json)
        printf("%d compared, %d differ\n", diff->n, diff->differing);
    if (status == AX_OK && !diff->common)
        status =
            ax_fail(AX_ERR_DATA,
                    "%s and %s have no array in common: no weights were compared. Are they models of one "
                    "family?",
                    a->a, a->b);
    ax_ckpt_diff_destroy(&diff);
    return status;
}

const cli_verb verb_ckpt_diff = {
    .name = "ckpt diff",
    .summary = "compare two checkpoints or models, array by array",
    .details =
        "Compares weights, config.json, and optimizer state if both have it. Floating-point arrays are\n"
        "compared by value, also if their dtypes differ: 0 and -0 differ, two NaNs are equal. Array names\n"
        "match with or without the prefix of the model family (transformer.wte.weight and wte.weight). The\n"
        "exit code is 0 even if they differ (see \"equal\" in --json), and 4 if they have no array in\n"
        "common. An adapter is compared with an adapter only.",
    .examples = "axonn ckpt diff runs/a runs/b\naxonn ckpt diff runs/a/ckpt/step-100 runs/a/ckpt/step-200",
    .options = diff_options,
    .option_count = AX_COUNT(diff_options),
    .args_size = sizeof(diff_args),
    .run = run_diff,
};
