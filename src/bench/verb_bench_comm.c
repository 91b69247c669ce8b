/* axonn bench comm: times axonn's collectives over all ranks and its messages from rank 0 to rank 1, and for
 * comparison the same operations of the MPI library. */
#include "bench/bench.h"
#include "cli/launch.h"

#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RUNS = 1001, MOST_CALLS = 16 };

typedef struct args {
    cli_launch launch;
    int64_t runs, smallest, largest;
    ax_strings only;
    const char *device;
    int caches; /* caches_kind */
    bool json;
    char *save;
} args;

typedef enum caches_kind { CACHES_BOTH, CACHES_WARM, CACHES_COLD } caches_kind;

static const ax_option comm_options[] = {
    LAUNCH_OPTIONS(args, launch),
    {"collective", AX_OPT_STRINGS, offsetof(args, only), .meta = "NAME",
     .help = "time only these collectives: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, "
             "barrier, message (from rank 0 to rank 1)"},
    {"min", AX_OPT_INT, offsetof(args, smallest), "4096", "[4, 1073741824]", .meta = "BYTES",
     .help = "bytes of the smallest buffer that is timed; each size is four times the previous one"},
    {"max", AX_OPT_INT, offsetof(args, largest), "67108864", "[4, 1073741824]", .meta = "BYTES",
     .help = "bytes of the largest buffer that is timed"},
    {"runs", AX_OPT_INT, offsetof(args, runs), "15", "[1, 1001]", .meta = "N",
     .help = "how often each case is timed, alternately by axonn and by the MPI library"},
    {"device", AX_OPT_STRING, offsetof(args, device), "cpu", .choices = "cpu|cuda",
     .help = "where axonn's buffers are: in host memory (cpu) or on the GPU (cuda); those of the MPI library "
             "are always in host memory"},
    {"caches", AX_OPT_ENUM, offsetof(args, caches), "both", .choices = "both|warm|cold",
     .help =
         "time only with warm, or only with cold caches; --save takes cold ones unless only warm ones (or "
         "a GPU) are timed"},
    {"json", AX_OPT_BOOL, offsetof(args, json), "false",
     .help = "print the results as JSON, one object per case"},
    {"save", AX_OPT_PATH, offsetof(args, save), .meta = "FILE",
     .help = "also time the collectives of all smaller groups of ranks, and write all times into the "
             "description of this machine in FILE"},
};

/* In the arrays of two elements, [0] is for axonn and [1] for the MPI library. axonn's buffers are allocated
 * as in training, those for the MPI library with calloc. */
typedef struct bench {
    ax_comm *world, *all; /* all: of a group, the world of which it is a part */
    const args *args;
    ax_ctx ctx;                /* without a grid: only allocates on the device */
    ax_stream on_dev, *stream; /* stream: &on_dev, or NULL for host memory */
    char *send[2], *recv[2];
    char *sweep; /* memory of twice the size of the last-level cache, at least 32 MiB; writing it evicts the
                    buffers */
    size_t sweep_bytes;
    char machine[160];
    int peer;         /* the rank that gets messages from rank 0 */
    ax_machine *save; /* the description of this machine; NULL: none is written */
} bench;

static const char *case_name(int coll)
{
    return coll == BENCH_MESSAGE ? "message" : ax_coll_name((ax_coll)coll);
}

/* ---- one call ------------------------------------------------------------------------------------ */

/* Returns the arguments of a collective. `bytes` is the size of a rank's send or receive buffer, whichever is
 * larger. `library` is the index of the buffers: 0 for axonn, 1 for the MPI library. */
static ax_coll_args call_of(const bench *b, ax_coll coll, int64_t bytes, int library)
{
    int64_t n = bytes / (int64_t)sizeof(float);
    bool by_rank = coll == AX_ALL_GATHER || coll == AX_REDUCE_SCATTER || coll == AX_ALL_TO_ALL;
    bool in_place = coll == AX_ALL_REDUCE || coll == AX_BROADCAST;
    return (ax_coll_args){.coll = coll,
                          .send = in_place ? b->recv[library] : b->send[library],
                          .recv = b->recv[library],
                          .count = by_rank              ? ax_max(1, n / ax_comm_size(b->world))
                                   : coll == AX_BARRIER ? 0
                                                        : n,
                          .dtype = AX_F32};
}

/* Sends a message from rank 0 to rank b->peer with axonn; other ranks do nothing. */
static ax_status message_ours(const bench *b, const ax_coll_args *a)
{
    ax_work *work = NULL;
    int rank = ax_comm_rank(b->world);
    ax_message m = {.kind = AX_MESSAGE_ACTIVATION, .dtype = a->dtype, .ndim = 1, .dim = {a->count}};
    if (rank == 0)
        AX_TRY(ax_send(b->world, b->stream, &m, a->send, b->peer, &work));
    if (rank == b->peer)
        AX_TRY(ax_recv(b->world, b->stream, &m, a->recv, 0, &work));
    return ax_wait(&work);
}

static ax_status call_ours(const bench *b, const ax_coll_args *a)
{
    ax_comm *comm = b->world;
    ax_work *work = NULL;
    if ((int)a->coll == BENCH_MESSAGE)
        return message_ours(b, a);
    switch (a->coll) {
    case AX_ALL_REDUCE:
        AX_TRY(ax_all_reduce(comm, b->stream, a->recv, a->count, a->dtype, a->op, &work));
        break;
    case AX_ALL_GATHER:
        AX_TRY(ax_all_gather(comm, b->stream, a->send, a->recv, a->count, a->dtype, &work));
        break;
    case AX_REDUCE_SCATTER:
        AX_TRY(ax_reduce_scatter(comm, b->stream, a->send, a->recv, a->count, a->dtype, a->op, &work));
        break;
    case AX_ALL_TO_ALL:
        AX_TRY(ax_all_to_all(comm, b->stream, a->send, a->recv, a->count, a->dtype, &work));
        break;
    case AX_BROADCAST:
        AX_TRY(ax_broadcast(comm, b->stream, a->recv, a->count, a->dtype, a->root, &work));
        break;
    case AX_BARRIER:
        return ax_barrier(comm);
    }
    return ax_wait(&work);
}

/* Measures the seconds from the start of axonn's call until ax_wait has returned and the device has finished.
 * A barrier precedes the call. */
static ax_status time_ours(const bench *b, const ax_coll_args *a, double *seconds)
{
    AX_TRY(ax_barrier(b->world));
    double begin = ax_now();
    AX_TRY(call_ours(b, a));
    if (b->stream)
        AX_TRY(ax_stream_wait(b->stream));
    *seconds = ax_now() - begin;
    return AX_OK;
}

/* Evicts the buffers from the caches by writing other memory. */
static void flush_caches(bench *b)
{
    for (size_t i = 0; i < b->sweep_bytes; i += 64)
        b->sweep[i]++;
}

/* Returns the argument `stream` of ax_comm_path for a call: NULL for barriers, which run on the host. */
static const ax_stream *path_stream(const bench *b, const ax_coll_args *a)
{
    return a->coll == AX_BARRIER ? NULL : b->stream;
}

static const char *path_of(const bench *b, const ax_coll_args *a)
{
    return (int)a->coll == BENCH_MESSAGE ? "messages" : ax_comm_path(b->world, path_stream(b, a), a);
}

/* Returns whether times with warm caches are saved: a GPU's caches are not flushed. */
static bool saves_warm(const bench *b) { return b->stream || b->args->caches == CACHES_WARM; }

/* ---- one case ------------------------------------------------------------------------------------ */

static ax_status time_call(const bench *b, const ax_coll_args *a, int library, double *seconds)
{
    return library ? bench_time_mpi(b->world, a, seconds) : time_ours(b, a, seconds);
}

/* Measures the time of a call. With cold caches it is the time of a single call. With warm caches it is the
 * mean over up to MOST_CALLS calls (fewer for larger buffers), because a single short call cannot be timed
 * precisely; one more call before them warms the caches. */
static ax_status sample(bench *b, const ax_coll_args *a, bool warm, int library, double *out)
{
    double once;
    if (!warm) {
        flush_caches(b);
        return time_call(b, a, library, out);
    }
    int64_t bytes = a->count * (int64_t)sizeof(float);
    int calls = (int)ax_max(1, ax_min(MOST_CALLS, ((int64_t)1 << 20) / ax_max(1, bytes)));
    *out = 0;
    AX_TRY(time_call(b, a, library, &once));
    for (int i = 0; i < calls; i++) {
        AX_TRY(time_call(b, a, library, &once));
        *out += once / calls;
    }
    return AX_OK;
}

/* Computes the spread over n runs. The time of a run is the time on its slowest rank. */
static ax_status spread_of(ax_comm *world, double *seconds, int64_t n, ax_spread *out)
{
    ax_work *work;
    AX_TRY(ax_all_reduce(world, NULL, seconds, n, AX_F64, AX_MAX, &work));
    AX_TRY(ax_wait(&work));
    *out = ax_spread_of(seconds, n);
    return AX_OK;
}

/* Replaces *x by its mean over the ranks. */
static ax_status mean_of(ax_comm *world, double *x)
{
    ax_work *work;
    AX_TRY(ax_all_reduce(world, NULL, x, 1, AX_F64, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    *x /= ax_comm_size(world);
    return AX_OK;
}

static json_t *spread_json(const ax_spread *s)
{
    return json_pack("{s:f, s:f, s:f}", "median", s->median * 1e6, "min", s->min * 1e6, "max", s->max * 1e6);
}

static ax_status print_json(const bench *b, const char *name, const ax_coll_args *a, int64_t bytes, bool warm,
                            const ax_spread s[2])
{
    json_t *out = spread_json(&s[0]);
    json_t *more =
        json_pack("{s:s, s:s, s:I, s:s, s:I, s:s, s:s, s:f, s:o, s:f, s:i, s:s, s:s, s:s}", "case", name,
                  "unit", "us", "runs", (json_int_t)b->args->runs, "collective", case_name((int)a->coll),
                  "bytes", (json_int_t)bytes, "caches", warm ? "warm" : "cold", "path", path_of(b, a),
                  "gb_per_s", (double)bytes / s[0].median * 1e-9, "mpi", spread_json(&s[1]), "mpi_over_this",
                  s[1].median / s[0].median, "ranks", ax_comm_size(b->world), "machine", b->machine,
                  "mpi_library", ax_comm_mpi_library(), "version", ax_version());
    if (!out || !more || json_object_update(out, more)) {
        json_decref(out);
        out = NULL;
    }
    json_decref(more);
    return cli_print_json(out);
}

static void print_row(const bench *b, const ax_coll_args *a, int64_t bytes, bool warm, const ax_spread s[2])
{
    char size[32];
    printf("%-15s %10s %-5s %10.1f %8.1f %9.1f %8.2f %10.1f %6.2f  %s\n", case_name((int)a->coll),
           a->coll == AX_BARRIER ? "-" : ax_format_bytes((double)bytes, size), warm ? "warm" : "cold",
           s[0].median * 1e6, s[0].min * 1e6, s[0].max * 1e6, (double)bytes / s[0].median * 1e-9,
           s[1].median * 1e6, s[1].median / s[0].median, path_of(b, a));
    fflush(stdout);
}

/* Enters a collective's path, and the rate and latency of a link from messages of ascending size. */
static void note_link(bench *b, const ax_coll_args *a, int64_t bytes, double seconds)
{
    static const char *const paths[] = {[AX_MACHINE_NCCL] = "nccl",
                                        [AX_MACHINE_HOST] = "node",
                                        [AX_MACHINE_FLAT] = "flat",
                                        [AX_MACHINE_STAGED] = "staged"};
    const bool message = (int)a->coll == BENCH_MESSAGE;
    ax_machine_link *link =
        &b->save->link[b->peer < b->save->ranks_per_node ? AX_MACHINE_NODE : AX_MACHINE_NETWORK];
    for (int i = 0; i < (int)AX_COUNT(paths) && !message && a->coll != AX_BARRIER; i++)
        if (!strcmp(paths[i], path_of(b, a)))
            b->save->path[a->coll] = i;
    if (message)
        link->latency = bytes == b->args->smallest || seconds < link->latency ? seconds : link->latency;
    if (message)
        link->rate = (double)bytes / (seconds > link->latency ? seconds - link->latency : seconds);
}

/* Enters a measured time into the description of this machine. */
static ax_status put_time(bench *b, const ax_coll_args *a, int64_t bytes, int inner, int size, double seconds)
{
    const bool message = (int)a->coll == BENCH_MESSAGE;
    note_link(b, a, bytes, seconds);
    return ax_machine_put_time(b->save, message ? (int)AX_MACHINE_MESSAGE : (int)a->coll,
                               message && b->peer >= b->save->ranks_per_node ? (int)b->save->ranks_per_node
                                                                             : inner,
                               message ? 2 : size, bytes, seconds);
}

static ax_status run_case(bench *b, ax_coll coll, int64_t bytes, bool warm)
{
    double seconds[2][MOST_RUNS];
    int64_t runs = b->args->runs;
    ax_coll_args a[2] = {call_of(b, coll, bytes, 0), call_of(b, coll, bytes, 1)};
    ax_spread s[2];
    for (int64_t i = 0; i < runs; i++)
        for (int library = 0; library < 2; library++)
            AX_TRY(sample(b, &a[library], warm, library, &seconds[library][i]));
    for (int library = 0; library < 2; library++)
        AX_TRY(spread_of(b->world, seconds[library], runs, &s[library]));
    if (b->save && (warm == saves_warm(b) || coll == AX_BARRIER))
        AX_TRY(put_time(b, &a[0], bytes, 1, ax_comm_size(b->world), s[0].median));
    if (ax_comm_rank(b->world) != 0)
        return AX_OK;
    char name[96], size[32];
    snprintf(name, sizeof name, "%s %s %s", case_name((int)coll), ax_format_bytes((double)bytes, size),
             warm ? "warm" : "cold");
    if (b->args->json)
        return print_json(b, name, &a[0], bytes, warm, s);
    print_row(b, &a[0], bytes, warm, s);
    return AX_OK;
}

static bool wanted(const args *a, int coll)
{
    bool found = a->only.count == 0;
    for (size_t i = 0; i < a->only.count; i++)
        found |= !strcmp(a->only.items[i], case_name(coll));
    return found;
}

static ax_status run_cases(bench *b)
{
    if (ax_comm_rank(b->world) == 0 && !b->args->json)
        printf("%d ranks on %s\ncompared with %s; times in us, GB/s of the buffer\n\n%-15s %10s %-5s %10s "
               "%8s %9s "
               "%8s %10s %6s  %s\n",
               ax_comm_size(b->world), b->machine, ax_comm_mpi_library(), "collective", "buffer", "cache",
               "median", "min", "max", "GB/s", "MPI", "times", "path");
    for (int coll = AX_ALL_REDUCE; coll <= BENCH_MESSAGE; coll++)
        for (int64_t bytes = b->args->smallest; bytes <= b->args->largest && wanted(b->args, coll);
             bytes *= 4) {
            if (b->stream || b->args->caches != CACHES_COLD || coll == AX_BARRIER)
                AX_TRY(run_case(b, (ax_coll)coll, coll == AX_BARRIER ? 0 : bytes, true));
            if (coll == AX_BARRIER)
                break;
            if (!b->stream && b->args->caches != CACHES_WARM)
                AX_TRY(run_case(b, (ax_coll)coll, bytes, false));
        }
    return AX_OK;
}

/* ---- groups of ranks, for the description of this machine ---------------------------------------------- */

/* Times a collective, or a message, on all groups at the same time. */
static ax_status time_groups(bench *b, bench *group, int coll, int inner)
{
    double seconds[MOST_RUNS];
    const bool warm = saves_warm(b);
    ax_spread spread;
    for (int64_t bytes = b->args->smallest; bytes <= b->args->largest; bytes *= 4) {
        const ax_coll_args a = call_of(group, (ax_coll)coll, bytes, 0);
        for (int64_t i = 0; i < b->args->runs; i++) {
            AX_TRY(ax_barrier(b->world));
            AX_TRY(sample(group, &a, warm, 0, &seconds[i]));
        }
        AX_TRY(spread_of(b->world, seconds, b->args->runs, &spread));
        AX_TRY(put_time(group, &a, bytes, inner, ax_comm_size(group->world), spread.median));
    }
    return AX_OK;
}

/* Times collectives of groups of `size` ranks at distance `inner`. */
static ax_status run_groups(bench *b, int inner, int size)
{
    const int rank = ax_comm_rank(b->world);
    bench group = *b;
    char why[AX_COMM_WHY];
    AX_TRY(ax_comm_split(b->world, rank % inner + rank / (inner * size) * inner, rank, &group.world));
    ax_status status = b->stream ? ax_comm_connect(group.world, b->ctx.dev, "a group", why) : AX_OK;
    for (int coll = AX_ALL_REDUCE; coll <= AX_BROADCAST && status == AX_OK; coll++)
        if (wanted(b->args, coll))
            status = time_groups(b, &group, coll, inner);
    ax_comm_destroy(&group.world);
    return status;
}

/* ---- collectives beside kernels ---------------------------------------------------------------------- */

enum { WORK = 256, WORK_BYTES = WORK * WORK * (int)sizeof(float), BESIDE_BYTES = 4 << 20, BESIDE_RUNS = 101 };

static ax_gemm_args gemm_of(float *operands)
{
    return (ax_gemm_args){.m = WORK,
                          .n = WORK,
                          .k = WORK,
                          .a = operands,
                          .b = operands + WORK * WORK,
                          .c = operands + 2 * WORK * WORK,
                          .lda = WORK,
                          .ldb = WORK,
                          .ldc = WORK,
                          .dtype = AX_F32,
                          .c_dtype = AX_F32};
}

/* Runs `n` GEMMs of WORK x WORK x WORK, and meanwhile a collective if `a` is not NULL. Sets *seconds to the
 * time until all of it is done. */
static ax_status time_work(const bench *b, ax_stream *stream, float *operands, int64_t n,
                           const ax_coll_args *a, double *seconds)
{
    const ax_gemm_args gemm = gemm_of(operands);
    ax_work *work = NULL;
    AX_TRY(ax_barrier(b->world));
    const double begin = ax_now();
    if (a)
        AX_TRY(ax_all_reduce(b->world, b->stream, a->recv, a->count, a->dtype, a->op, &work));
    for (int64_t i = 0; i < n; i++)
        AX_TRY(ax_run_gemm(stream, &gemm));
    AX_TRY(ax_wait(&work));
    AX_TRY(ax_stream_wait(stream));
    *seconds = ax_now() - begin;
    return AX_OK;
}

/* Sends a message to the next rank of the group and gets one from the previous, while all ranks compute `n`
 * GEMMs. Sets *seconds to the time until the message has arrived, as seen after each GEMM. */
static ax_status time_message(const bench *b, ax_stream *stream, float *operands, int64_t n, double *seconds)
{
    const int rank = ax_comm_rank(b->world), size = ax_comm_size(b->world);
    const ax_message m = {.kind = AX_MESSAGE_ACTIVATION,
                          .dtype = AX_F32,
                          .ndim = 1,
                          .dim = {b->args->smallest / (int64_t)sizeof(float)}};
    const ax_gemm_args gemm = gemm_of(operands);
    ax_work *received, *sent;
    bool done = false;
    AX_TRY(ax_barrier(b->all));
    const double begin = ax_now();
    AX_TRY(ax_recv(b->world, b->stream, &m, b->recv[0], (rank + size - 1) % size, &received));
    AX_TRY(ax_send(b->world, b->stream, &m, b->send[0], (rank + 1) % size, &sent));
    for (int64_t i = 0; i <= n; i++) {
        if (i == n)
            AX_TRY(ax_wait(&received));
        if (!done && ax_work_done(received)) {
            *seconds = ax_now() - begin;
            done = true;
        }
        if (i < n)
            AX_TRY(ax_run_gemm(stream, &gemm));
    }
    AX_TRY(ax_stream_wait(stream));
    return ax_wait(&sent);
}

/* Measures how much longer a message takes while all ranks compute than while they wait for it. `gemm`:
 * seconds of a GEMM. */
static ax_status measure_busy(const bench *b, float *operands, double gemm, double *busy)
{
    const double patience = 0.05; /* seconds that ranks compute */
    ax_stream on_device = {.dev = b->ctx.dev};
    const int64_t runs = ax_min(b->args->runs, BESIDE_RUNS), n = 1 + (int64_t)(patience / gemm);
    double seconds[2][BESIDE_RUNS];
    ax_spread s[2];
    for (int64_t i = 0; i < runs; i++)
        for (int computes = 0; computes < 2; computes++)
            AX_TRY(time_message(b, &on_device, operands, computes ? n : 0, &seconds[computes][i]));
    for (int i = 0; i < 2; i++) {
        s[i] = ax_spread_of(seconds[i], runs);
        AX_TRY(mean_of(b->all, &s[i].median));
    }
    *busy = fmax(0, s[1].median - s[0].median);
    return AX_OK;
}

/* Measures the part of an all-reduce's time by which it makes kernels later that run meanwhile and take twice
 * as long: by itself, GEMMs by themselves, and both together, in turns. Then link->busy. */
static ax_status measure_link(const bench *b, float *operands, ax_machine_link *link)
{
    ax_stream on_device = {.dev = b->ctx.dev};
    const ax_coll_args a = call_of(b, AX_ALL_REDUCE, ax_min(BESIDE_BYTES, b->args->largest), 0);
    const int64_t runs = ax_min(b->args->runs, BESIDE_RUNS);
    double seconds[3][BESIDE_RUNS];
    ax_spread s[3];
    int64_t n = 1;
    for (int64_t i = 0; i < runs; i++) {
        AX_TRY(time_call(b, &a, 0, &seconds[0][i]));
        AX_TRY(time_work(b, &on_device, operands, 1, NULL, &seconds[1][i]));
    }
    for (int i = 0; i < 2; i++)
        AX_TRY(spread_of(b->all, seconds[i], runs, &s[i]));
    n = 1 + (int64_t)(2 * s[0].median / s[1].median);
    for (int64_t i = 0; i < runs; i++) {
        AX_TRY(time_call(b, &a, 0, &seconds[0][i]));
        AX_TRY(time_work(b, &on_device, operands, n, NULL, &seconds[1][i]));
        AX_TRY(time_work(b, &on_device, operands, n, &a, &seconds[2][i]));
    }
    for (int i = 0; i < 3; i++)
        AX_TRY(spread_of(b->all, seconds[i], runs, &s[i]));
    link->occupies = fmin(1, fmax(0, (s[2].median - s[1].median) / s[0].median));
    return measure_busy(b, operands, s[1].median / (double)n, &link->busy);
}

/* Measures what collectives and kernels of a link take from one another; all groups of `size` ranks at
 * distance `inner` communicate at the same time. */
static ax_status run_beside(bench *b, int inner, int size, ax_machine_link *link)
{
    const int rank = ax_comm_rank(b->world);
    bench group = *b;
    char why[AX_COMM_WHY];
    float *operands = NULL;
    group.all = b->world;
    AX_TRY(ax_comm_split(b->world, rank % inner + rank / (inner * size) * inner, rank, &group.world));
    ax_status status = b->stream ? ax_comm_connect(group.world, b->ctx.dev, "a group", why) : AX_OK;
    status = ax_comm_agree(b->world, status == AX_OK ? ax_ctx_alloc(&b->ctx, AX_MEMORY_MESSAGES,
                                                                    3 * WORK_BYTES, (void **)&operands)
                                                     : status);
    if (status == AX_OK) {
        if (!b->stream)
            memset(operands, 0, 3 * WORK_BYTES);
        status = measure_link(&group, operands, link);
        ax_ctx_free(&b->ctx, AX_MEMORY_MESSAGES, operands, 3 * WORK_BYTES);
    }
    ax_comm_destroy(&group.world);
    return status;
}

static ax_status run_all_beside(bench *b)
{
    const int node = (int)b->save->ranks_per_node, nodes = (int)b->save->nodes;
    if (!wanted(b->args, AX_ALL_REDUCE))
        return AX_OK;
    if (node > 1)
        AX_TRY(run_beside(b, 1, node, &b->save->link[AX_MACHINE_NODE]));
    return nodes > 1 ? run_beside(b, node, nodes, &b->save->link[AX_MACHINE_NETWORK]) : AX_OK;
}

/* Times the groups of which the world consists, except for the world itself, and messages to the next node.
 */
static ax_status run_all_groups(bench *b)
{
    const int ranks = ax_comm_size(b->world), node = (int)b->save->ranks_per_node;
    bench to_next = *b;
    for (int inner = 1; inner < ranks; inner++)
        for (int size = 2; inner * size <= ranks; size++)
            if (ranks % (inner * size) == 0 && size < ranks &&
                (inner * size > node || node % (inner * size) == 0))
                AX_TRY(run_groups(b, inner, size));
    to_next.peer = node;
    return node > 1 && node < ranks && wanted(b->args, BENCH_MESSAGE)
               ? time_groups(b, &to_next, BENCH_MESSAGE, node)
               : AX_OK;
}

static ax_status save(bench *b)
{
    char text[256];
    int place;
    const int64_t available = ax_device_available(b->args->device, b->ctx.local_rank, &place);
    AX_TRY(ax_device_name_host_access(b->args->device, &b->save->device.host_access));
    if (!b->save->device.memory)
        b->save->device.memory = place ? available : b->save->host.memory / b->save->ranks_per_node;
    snprintf(text, sizeof text, "axonn %s, nodes: %lld, ranks of a node: %lld, on %s, %s caches, %s",
             ax_version(), (long long)b->save->nodes, (long long)b->save->ranks_per_node, b->args->device,
             saves_warm(b) ? "warm" : "cold", ax_comm_mpi_library());
    return bench_machine_save(b->world, b->save, &b->save->measured.comm, text, b->args->save);
}

/* ---- preparation --------------------------------------------------------------------------------- */

/* Opens this rank's device (the ranks of a machine take its GPUs in turn) and, on GPUs, sets up collectives
 * from GPU to GPU (ax_comm_connect). */
static ax_status open_device(bench *b)
{
    ax_threads threads = {0};
    char why[AX_COMM_WHY];
    b->ctx.world = b->world;
    AX_TRY(ax_ctx_find_limit(&b->ctx.most));
    if (strcmp(b->args->device, "cpu") != 0)
        AX_TRY(ax_threads_share(b->world, 1, &threads));
    ax_binding mine = {.local_rank = threads.binding.local_rank};
    AX_TRY(ax_comm_agree(b->world, ax_device_open_bound(b->args->device, 1, &mine, &b->ctx.dev)));
    if (ax_device_uses_host_memory(b->ctx.dev))
        return AX_OK;
    b->on_dev.dev = b->ctx.dev;
    b->stream = &b->on_dev;
    AX_TRY(ax_comm_connect(b->world, b->ctx.dev, "all ranks", why));
    if (*why)
        ax_log(AX_LOG_INFO, "collectives go through host memory: %s", why);
    return AX_OK;
}

static ax_status prepare(bench *b)
{
    enum { LEAST_SWEEP = 32 << 20 };
    size_t bytes = (size_t)b->args->largest + 4096;
    b->sweep_bytes = 2 * bench_processor(b->machine, sizeof b->machine);
    b->sweep_bytes = b->sweep_bytes < LEAST_SWEEP ? LEAST_SWEEP : b->sweep_bytes;
    AX_TRY(ax_calloc(b->sweep_bytes, 1, &b->sweep));
    AX_TRY(open_device(b));
    AX_TRY(ax_ctx_alloc(&b->ctx, AX_MEMORY_MESSAGES, bytes, (void **)&b->send[0]));
    AX_TRY(ax_ctx_alloc(&b->ctx, AX_MEMORY_MESSAGES, bytes, (void **)&b->recv[0]));
    AX_TRY(ax_calloc(bytes, 1, &b->send[1]));
    AX_TRY(ax_calloc(bytes, 1, &b->recv[1]));
    /* Each rank writes its buffers first (first touch), so that their pages lie in its own NUMA memory. */
    for (int library = b->stream != NULL; library < 2; library++) {
        memset(b->send[library], 0, bytes);
        memset(b->recv[library], 0, bytes);
    }
    return ax_barrier(b->world);
}

static void release(bench *b)
{
    size_t bytes = (size_t)b->args->largest + 4096;
    for (int i = 0; i < 2 && b->ctx.dev; i++)
        ax_ctx_free(&b->ctx, AX_MEMORY_MESSAGES, i ? b->recv[0] : b->send[0], bytes);
    ax_comm_disconnect(b->world);
    ax_device_close(&b->ctx.dev);
    free(b->send[1]);
    free(b->recv[1]);
    free(b->sweep);
}

static ax_status check(const args *a)
{
    for (size_t i = 0; i < a->only.count; i++) {
        bool known = false;
        for (int coll = AX_ALL_REDUCE; coll <= BENCH_MESSAGE; coll++)
            known |= !strcmp(a->only.items[i], case_name(coll));
        AX_CHECK(known, AX_ERR_USAGE,
                 "--collective: none is named \"%s\"; there are all_reduce, all_gather, reduce_scatter, "
                 "all_to_all, broadcast, barrier and message",
                 a->only.items[i]);
    }
    AX_CHECK(a->smallest <= a->largest, AX_ERR_USAGE,
             "--min %lld is above --max %lld: give a smaller --min or a larger --max", (long long)a->smallest,
             (long long)a->largest);
    return AX_OK;
}

static ax_status run_comm(const void *raw)
{
    bench b = {.args = raw, .peer = 1};
    AX_TRY(check(b.args));
    /* Makes malloc keep the memory that the MPI library frees; otherwise each call of the library would map
     * memory anew. With one malloc arena for all threads, this applies to the communication thread too. */
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    AX_TRY(cli_world_open(&b.world));
    ax_status status =
        ax_comm_size(b.world) > 1
            ? prepare(&b)
            : ax_fail(AX_ERR_USAGE, "one rank has no other rank to communicate with; start several: "
                                    "axonn bench comm --ranks 2");
    if (status == AX_OK && b.args->save)
        status = bench_machine_open(b.world, b.args->save, &b.save);
    if (status == AX_OK)
        status = run_cases(&b);
    if (status == AX_OK && b.save)
        status = run_all_groups(&b);
    if (status == AX_OK && b.save)
        status = run_all_beside(&b);
    if (status == AX_OK && b.save)
        status = save(&b);
    cli_world_abort_unshared(b.world, status);
    release(&b);
    ax_machine_close(&b.save);
    return cli_world_close(&b.world, status);
}

const cli_verb verb_bench_comm = {
    .name = "bench comm",
    .summary = "time collectives and messages, and compare them with those of the MPI library",
    .details =
        "Times are those of the slowest rank, from the call until its result is complete.\n"
        "  cache  warm: the buffers stay in the caches if they fit; cold: the caches are flushed in between\n"
        "  times  MPI's median divided by this library's; above 1 this library is faster\n"
        "  path   node: memory shared by the ranks of a node; flat: MPI messages; nccl: from GPU to GPU;\n"
        "         staged: from GPU to GPU through host memory; messages: the message from rank 0 to rank 1\n"
        "With --save, FILE becomes a description of this machine. What was not measured is listed at its "
        "end.",
    .examples = "axonn bench comm --ranks 2\n"
                "axonn bench comm --ranks 2 --save machine.yaml\n"
                "axonn bench comm --ranks 2 --device cuda\n"
                "mpirun -n 4 axonn bench comm --collective all_reduce --max 16777216 --json",
    .options = comm_options,
    .option_count = AX_COUNT(comm_options),
    .args_size = sizeof(args),
    .run = run_comm,
    .launches = true,
};
