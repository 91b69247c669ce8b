/* axonn prune: writes a model with the smallest elements of its matrices set to zero. */
#include "axonn/infer.h"
#include "model.h"

#include <string.h>

typedef struct prune_args {
    char *model, *out;
    double density;
    int scope;
    ax_strings skip;
    bool json;
} prune_args;

static const ax_option prune_options[] = {
    {"MODEL", AX_OPT_PATH, offsetof(prune_args, model), .required = true,
     .help = "the model to prune: a Hugging Face directory, a run directory (its newest checkpoint) or a "
             "checkpoint"},
    {"density", AX_OPT_FLOAT, offsetof(prune_args, density), NULL, "(0, 1]", .required = true, .meta = "F",
     .help = "which part of the elements is kept, e.g. 0.1; the others become zero"},
    {"out", AX_OPT_PATH, offsetof(prune_args, out), .required = true, .meta = "DIR",
     .help = "the directory to write, which must not exist"},
    {"scope", AX_OPT_ENUM, offsetof(prune_args, scope), "matrix", .choices = "matrix|model",
     .help = "keep this part of each matrix, or of all matrices together, which may then differ"},
    {"skip", AX_OPT_STRINGS, offsetof(prune_args, skip), .meta = "NAME...",
     .help =
         "matrices that are not pruned: q, k, v, proj, gate, up, down, or as in the files, e.g. down_proj; "
         "or patterns for arrays of the files, e.g. 'model.layers.0.*'"},
    {"json", AX_OPT_BOOL, offsetof(prune_args, json), "false", .help = "print the result as one JSON object"},
};

typedef struct pruning {
    ax_pruning_args how;
    ax_pruning result;
} pruning;

static ax_status prune(void *raw, const char *dir)
{
    pruning *p = raw;
    p->how.dir = dir;
    return ax_model_prune(&p->how, &p->result);
}

static double part(int64_t kept, int64_t elements) { return (double)kept / (double)elements; }

static json_t *matrix_json(const ax_pruned_matrix *m)
{
    const json_int_t elements = (json_int_t)m->elements, kept = (json_int_t)m->kept;
    return json_pack("{s:s, s:I, s:s, s:I, s:b, s:o, s:o}", "matrix", ax_matrix_name(m->matrix), "block",
                     (json_int_t)m->block, "array", m->array, "elements", elements, "skipped", m->skipped,
                     "kept", m->skipped ? json_null() : json_integer(kept), "density",
                     m->skipped ? json_null() : json_real(part(m->kept, m->elements)));
}

static ax_status print_json(const prune_args *a, const ax_pruning *r, double seconds)
{
    json_t *matrices = json_array();
    for (int64_t i = 0; i < r->n; i++)
        json_array_append_new(matrices, matrix_json(&r->matrix[i]));
    return cli_print_json(json_pack(
        "{s:s, s:s, s:o, s:I, s:I, s:I, s:f, s:i, s:i, s:I, s:f}", "model", a->model, "out", a->out,
        "matrices", matrices, "elements", (json_int_t)r->elements, "chosen", (json_int_t)r->chosen, "kept",
        (json_int_t)r->kept, "density", part(r->kept, r->elements), "arrays", r->copy.arrays, "files",
        r->copy.files, "bytes", (json_int_t)r->copy.bytes, "seconds", seconds));
}

static void print_matrices(const ax_pruning *r)
{
    int width = 0;
    for (int64_t i = 0; i < r->n; i++)
        width = (int)ax_max(width, (int64_t)strlen(r->matrix[i].array));
    for (int64_t i = 0; i < r->n; i++) {
        const ax_pruned_matrix *m = &r->matrix[i];
        printf("%-*s  %-4s  ", width, m->array, ax_matrix_name(m->matrix));
        if (m->skipped)
            printf("skipped\n");
        else
            printf("%-8.6f  %lld of %lld\n", part(m->kept, m->elements), (long long)m->kept,
                   (long long)m->elements);
    }
}

/* Logs what may not be expected of the result. */
static void warn(const prune_args *a, const ax_pruning *r)
{
    const ax_pruned_matrix *first = NULL;
    int64_t empty = 0;
    for (int64_t i = 0; i < r->n; i++)
        if (!r->matrix[i].skipped && !r->matrix[i].kept) {
            first = first ? first : &r->matrix[i];
            empty++;
        }
    if (r->kept < r->chosen)
        ax_log(AX_LOG_INFO, "%s: %lld of the %lld elements that are kept were zero before", a->out,
               (long long)(r->chosen - r->kept), (long long)r->chosen);
    if (empty)
        ax_log(AX_LOG_WARN, "%s: %lld matri%s nothing but zeros now%s %s of block %lld", a->out,
               (long long)empty, empty == 1 ? "x holds" : "ces hold", empty == 1 ? ":" : ", the first is",
               ax_matrix_name(first->matrix), (long long)first->block);
}

static ax_status report(const prune_args *a, const ax_pruning *r, double seconds)
{
    char bytes[32], time[32];
    warn(a, r);
    if (a->json)
        return print_json(a, r, seconds);
    print_matrices(r);
    printf("%s: density %.6f, %lld of %lld elements; %d file%s of %s, %s\n", a->out,
           part(r->kept, r->elements), (long long)r->kept, (long long)r->elements, r->copy.files,
           r->copy.files == 1 ? "" : "s", ax_format_bytes((double)r->copy.bytes, bytes),
           ax_format_seconds(seconds, time));
    return AX_OK;
}

static ax_status run_prune(const void *raw)
{
    const prune_args *a = raw;
    double start = ax_now();
    cli_progress progress;
    pruning p = {.how = {.out = a->out,
                         .density = a->density,
                         .scope = (ax_prune_scope)a->scope,
                         .skip = (const char *const *)a->skip.items,
                         .skips = (int)a->skip.count,
                         .progress = cli_progress_show,
                         .user = &progress}};
    cli_progress_start(&progress, "pruning", true);
    ax_status status = cli_use_model(a->model, prune, &p);
    cli_progress_end(&progress);
    if (status == AX_OK)
        status = report(a, &p.result, ax_now() - start);
    ax_pruning_fini(&p.result);
    return status;
}

const cli_verb verb_prune = {
    .name = "prune",
    .summary = "write a model with the smallest elements of its matrices set to zero",
    .details =
        "Writes a copy of the model in which all but the largest magnitudes of the blocks' matrices (q, k, "
        "v,\n"
        "proj, gate, up, down) are zero. Exactly F times the elements are kept, rounded to an integer: of\n"
        "each matrix, or of all of them with --scope model. Of equal magnitudes the first are kept, in the\n"
        "order of the file within a matrix. Kept elements keep their bits, arrays their dtype, and all "
        "else,\n"
        "such as embeddings, norms and the output layer, stays as it is. Models of the families that can be\n"
        "trained; merge an adapter with its base before. Needs 8 MiB of memory beside the files' headers,\n"
        "however large the model.\n"
        "\n"
        "Prints the density of each matrix: which part of its elements is not zero now. It is below F where\n"
        "the matrix had more zeros before.\n"
        "\n"
        "DIR appears when it is complete; until then the files are in a hidden directory beside it, which a\n"
        "failure or a signal removes. The exit code is 2 if DIR exists or a NAME means no matrix, 4 if a "
        "file\n"
        "is damaged, a weight is not finite, or there is no space, and 128 + N after signal N.",
    .examples =
        "axonn prune path/to/model --density 0.1 --out sparse\n"
        "axonn prune runs/name --density 0.2 --scope model --skip down 'model.layers.0.*' --out sparse",
    .options = prune_options,
    .option_count = AX_COUNT(prune_options),
    .args_size = sizeof(prune_args),
    .run = run_prune,
};
