/* Links between GPUs: communicators of NCCL. NCCL is loaded when the function `absent` is first called, so
 * that the plugin also runs where NCCL is not installed.
 *
 * All links of a GPU share one stream, so their collectives run in one order, as NCCL requires of
 * communicators with common GPUs. A collective waits on this stream for the earlier work of the GPU's compute
 * stream. `await` makes the compute stream wait for the collective. The host does not wait in either case.
 *
 * Communicators are non-blocking: no call of NCCL waits for another rank, so that nothing hangs inside NCCL.
 * Host code that waits, here or for the GPU (ax_nccl_reach), regularly checks whether NCCL has failed on a
 * link, and whether another rank has failed. If so, all links of the GPU are aborted, so that its streams do
 * not wait for them any more. */
#include "dev/cuda/cuda.h"

#include "axonn/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef AXONN_HAVE_NCCL

static const char *absent(ax_device *dev)
{
    (void)dev;
    return "libaxonn_cuda.so was built without NCCL's header nccl.h: install it, and configure and build "
           "again";
}
static ax_status check(ax_device *dev)
{
    (void)dev;
    return AX_OK;
}
const ax_link_ops ax_cuda_links = {.name = "nccl", .absent = absent, .check = check};
void ax_nccl_reach(ax_cuda *cu, cudaEvent_t event, bool ending)
{
    (void)cu;
    (void)event;
    (void)ending;
}
const char *ax_nccl_why(const ax_cuda *cu)
{
    (void)cu;
    return NULL;
}
void ax_nccl_destroy(ax_cuda *cu) { (void)cu; }

#else

#include <dlfcn.h>
#include <math.h>
#include <nccl.h>
#include <pthread.h>

#ifndef AXONN_NCCL_LIBRARY
#define AXONN_NCCL_LIBRARY "libnccl.so.2"
#endif

/* ---- the library --------------------------------------------------------------------------------- */

/* clang-format off */
#define FUNCTIONS(X) \
    X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetLastError) \
    X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommGetAsyncError) \
    X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) \
    X(ncclGroupStart) X(ncclGroupEnd) X(ncclSend) X(ncclRecv) \
    X(ncclAllReduce) X(ncclAllGather) X(ncclReduceScatter) X(ncclBroadcast)
/* clang-format on */

/* The functions of NCCL. The library is loaded once and stays loaded until the process ends. */
static struct {
#define POINTER(name) __typeof__(&name) name;
    FUNCTIONS(POINTER)
#undef POINTER
    pthread_once_t once;
    char why_not[200];
} nccl = {.once = PTHREAD_ONCE_INIT};

enum { OLDEST = 21400 }; /* NCCL 2.14, the first version with communicators that do not block */

static void load(void)
{
    const char *path;
    if (ax_runtime_fix(AX_RUNTIME_NCCL, &path) != AX_OK || !strcmp(path, "auto"))
        path = AXONN_NCCL_LIBRARY;
    if (!strcmp(path, "off")) {
        snprintf(nccl.why_not, sizeof nccl.why_not, "%s=off", ax_runtime_source(AX_RUNTIME_NCCL));
        return;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(nccl.why_not, sizeof nccl.why_not, "NCCL cannot be loaded: %s", dlerror());
        return;
    }
    int version = 0;
    const char *missing = NULL;
#define FIND(name)                                                                                           \
    *(void **)&nccl.name = dlsym(library, #name);                                                            \
    missing = nccl.name ? missing : #name;
    FUNCTIONS(FIND)
#undef FIND
    if (missing)
        snprintf(nccl.why_not, sizeof nccl.why_not, "%.100s has no function %s: it is not NCCL, or too old",
                 path, missing);
    else if (nccl.ncclGetVersion(&version) != ncclSuccess || version < OLDEST)
        snprintf(nccl.why_not, sizeof nccl.why_not,
                 "NCCL has version code %d, but collectives between GPUs need %d (2.14) or later: install a "
                 "newer NCCL",
                 version, OLDEST);
    else
        ax_log(AX_LOG_DEBUG, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* ---- links --------------------------------------------------------------------------------------- */

/* RING: number of collectives whose events and descriptions are kept. PATIENCE: timeout in seconds for
 * opening and closing a link, and for waits with `ending` (ax_nccl_reach). WARN: seconds until the first
 * warning about a long wait; each further warning comes when the wait has doubled. */
enum { RING = 64, PATIENCE = 120, WARN = 30 };

/* One of the last RING collectives that were started. */
typedef struct operation {
    ax_link *link; /* NULL: the link is closed */
    ax_coll_args args;
    int64_t number; /* sequence number of the collective on its link, from 1 */
    cudaEvent_t done;
} operation;

struct ax_nccl {
    cudaStream_t stream;
    cudaEvent_t begin, last;
    operation ring[RING];
    int64_t started;
    ax_link *links;
    bool failed;       /* all links are aborted */
    char why[500];     /* the reason for the failure, if `failed` */
    char refused[400]; /* why opening a link failed; `absent` returns it, so that no other link is opened */
};

struct ax_link {
    ax_link *next;
    ax_cuda *cu;
    ncclComm_t comm; /* NULL: NCCL's communicator was aborted */
    char name[64];
    int rank, size;
    int64_t calls;
    const char *(*world_failed)(void *user);
    void *user;
};

static ax_cuda *cuda_of(ax_device *dev) { return dev->impl; }

static const char *absent(ax_device *dev)
{
    const struct ax_nccl *n = cuda_of(dev)->nccl;
    pthread_once(&nccl.once, load);
    return *nccl.why_not ? nccl.why_not : n && n->failed ? n->why : n && *n->refused ? n->refused : NULL;
}

static void get_bus_id(ax_device *dev, char out[AX_LINK_PLACE])
{
    memset(out, 0, AX_LINK_PLACE);
    cudaDeviceGetPCIBusId(out, AX_LINK_PLACE, cuda_of(dev)->ordinal);
}

/* Describes the oldest collective in flight ("all_reduce of 8 f32, operation 3 along x of 4 GPUs"). If no
 * collective is in flight, describes `link`, unless it is NULL. */
static void describe(const struct ax_nccl *n, const ax_link *link, char *out, size_t size)
{
    char what[96];
    for (int64_t t = n->started < RING ? 0 : n->started - RING; t < n->started; t++) {
        const operation *o = &n->ring[t % RING];
        if (!o->link || cudaEventQuery(o->done) != cudaErrorNotReady)
            continue;
        ax_coll_describe(&o->args, what, sizeof what);
        snprintf(out, size, "%s, operation %lld along %s of %d GPUs", what, (long long)o->number,
                 o->link->name, o->link->size);
        return;
    }
    if (link)
        snprintf(out, size, "the link along %s of %d GPUs", link->name, link->size);
    else
        snprintf(out, size, "no collective is in flight");
}

static const char *nccl_error_text(const ax_link *link, ncclResult_t result, char *out, size_t size)
{
    const char *more = nccl.ncclGetLastError(link->comm);
    snprintf(out, size, "NCCL: %s%s%.120s", nccl.ncclGetErrorString(result), more && *more ? ": " : "",
             more ? more : "");
    return out;
}

/* Aborts all links, so that nothing waits for them any more, and keeps `why` as the reason. Later failures do
 * not change the reason. `link`: the link that failed, or NULL. */
static void fail_links(ax_cuda *cu, const ax_link *link, const char *why)
{
    struct ax_nccl *n = cu->nccl;
    char what[200];
    if (n->failed)
        return;
    describe(n, link, what, sizeof what);
    snprintf(n->why, sizeof n->why, "%s: %.280s", what, why);
    n->failed = true;
    for (ax_link *l = n->links; l; l = l->next)
        if (l->comm) {
            nccl.ncclCommAbort(l->comm);
            l->comm = NULL;
        }
}

/* Checks all links. If one of them, or another rank, has failed, aborts all links and returns false. */
static bool check_links(ax_cuda *cu)
{
    for (ax_link *l = cu->nccl->links; l; l = l->next) {
        char text[200];
        ncclResult_t state = ncclSuccess, result;
        if (!l->comm)
            continue;
        const char *why = l->world_failed(l->user);
        result = why ? ncclSuccess : nccl.ncclCommGetAsyncError(l->comm, &state);
        state = result == ncclSuccess ? state : result;
        if (!why && state != ncclSuccess && state != ncclInProgress)
            why = nccl_error_text(l, state, text, sizeof text);
        if (why) {
            fail_links(cu, l, why);
            return false;
        }
    }
    return true;
}

/* Sleeps 50 µs, but not during the first millisecond after `since`, in which the caller spins. */
static void back_off(double since)
{
    const double spin = 1e-3;
    if (ax_now() - since > spin)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Logs a warning WARN seconds after `begin`, and again each time the wait has doubled since the last warning.
 * *warned is the time of the last warning, at first `begin`. The warning names the oldest collective in
 * flight, or `link` if no collective is in flight and `link` is not NULL. */
static void warn_of_wait(const ax_cuda *cu, const ax_link *link, double begin, double *warned)
{
    char what[200];
    double now = ax_now();
    if (now - *warned <= fmax(WARN, *warned - begin))
        return;
    describe(cu->nccl, link, what, sizeof what);
    ax_log(AX_LOG_WARN,
           "this rank has waited %.0f s for its GPU or for other ranks (%s), and continues to wait",
           now - begin, what);
    *warned = now;
}

/* ---- waiting on the host ------------------------------------------------------------------------- */

void ax_nccl_reach(ax_cuda *cu, cudaEvent_t event, bool ending)
{
    const double look_every = 2e-3;
    double begin = ax_now(), looked = begin, warned = begin;
    cudaError_t result = cudaEventQuery(event);
    bool alive = true;
    for (; result == cudaErrorNotReady && alive; result = cudaEventQuery(event)) {
        double now = ax_now();
        if (now - looked > look_every) {
            alive = check_links(cu);
            looked = now;
        }
        if (ending && now - begin > PATIENCE) {
            fail_links(
                cu, NULL,
                "this rank closes its device or a link, or frees memory, but other ranks did not join its "
                "last collective within two minutes");
            alive = false;
        }
        warn_of_wait(cu, NULL, begin, &warned);
        back_off(begin);
    }
    cudaGetLastError(); /* clear cudaErrorNotReady, so that the next launch does not report it */
    check_links(cu);
}

const char *ax_nccl_why(const ax_cuda *cu) { return cu->nccl && cu->nccl->failed ? cu->nccl->why : NULL; }

static ax_status check(ax_device *dev)
{
    ax_cuda *cu = cuda_of(dev);
    if (cu->nccl)
        check_links(cu);
    AX_CHECK(!ax_nccl_why(cu), AX_ERR_COMM, "%s", ax_nccl_why(cu));
    return AX_OK;
}

/* Waits until a non-blocking call of NCCL is complete, for at most `seconds` (0: no limit). `result` is what
 * the call returned. Returns the final result of the call; ncclInProgress after the time limit;
 * ncclRemoteError if a link or a rank has failed. */
static ncclResult_t wait_nccl(ax_link *link, ncclResult_t result, double seconds)
{
    double begin = ax_now(), warned = begin;
    while (result == ncclInProgress) {
        ncclResult_t state;
        back_off(begin);
        warn_of_wait(link->cu, link, begin, &warned);
        if (!check_links(link->cu) || link->world_failed(link->user))
            return ncclRemoteError;
        result = nccl.ncclCommGetAsyncError(link->comm, &state);
        result = result == ncclSuccess ? state : result;
        if (result == ncclInProgress && seconds && ax_now() - begin > seconds)
            return result;
    }
    return result;
}

/* ---- opening and closing ------------------------------------------------------------------------- */

static ax_status create_state(ax_cuda *cu)
{
    AX_TRY(ax_calloc(1, sizeof *cu->nccl, &cu->nccl));
    AX_CUDA(cudaStreamCreateWithFlags(&cu->nccl->stream, cudaStreamNonBlocking));
    AX_CUDA(cudaEventCreateWithFlags(&cu->nccl->begin, cudaEventDisableTiming));
    AX_CUDA(cudaEventCreateWithFlags(&cu->nccl->last, cudaEventDisableTiming));
    for (int i = 0; i < RING; i++)
        AX_CUDA(cudaEventCreateWithFlags(&cu->nccl->ring[i].done, cudaEventDisableTiming));
    return AX_OK;
}

void ax_nccl_destroy(ax_cuda *cu)
{
    struct ax_nccl *n = cu->nccl;
    if (!n)
        return;
    if (n->stream)
        cudaStreamSynchronize(n->stream);
    for (int i = 0; i < RING; i++)
        if (n->ring[i].done)
            cudaEventDestroy(n->ring[i].done);
    if (n->begin)
        cudaEventDestroy(n->begin);
    if (n->last)
        cudaEventDestroy(n->last);
    if (n->stream)
        cudaStreamDestroy(n->stream);
    free(n);
    cu->nccl = NULL;
}

static ax_status ensure_state(ax_cuda *cu)
{
    ax_status status = cu->nccl ? AX_OK : create_state(cu);
    if (status != AX_OK)
        ax_nccl_destroy(cu);
    return status;
}

static ax_status unique_id(void *out)
{
    ncclUniqueId id;
    _Static_assert(sizeof id <= AX_LINK_UNIQUE_ID, "AX_LINK_UNIQUE_ID is too small for NCCL's unique id");
    ncclResult_t result = nccl.ncclGetUniqueId(&id);
    AX_CHECK(result == ncclSuccess, AX_ERR_COMM, "NCCL failed (ncclGetUniqueId): %s",
             nccl.ncclGetErrorString(result));
    memcpy(out, &id, sizeof id);
    return AX_OK;
}

static ax_status init_comm(ax_link *link, const void *unique_id)
{
    ncclUniqueId id;
    ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
    struct ax_nccl *n = link->cu->nccl;
    char text[200];
    how.blocking = 0;
#if NCCL_VERSION_CODE >= 22800
    how.commName = link->name;
#endif
    memcpy(&id, unique_id, sizeof id);
    ncclResult_t result = nccl.ncclCommInitRankConfig(&link->comm, link->size, id, link->rank, &how);
    result = wait_nccl(link, result, PATIENCE);
    if (result == ncclSuccess)
        return AX_OK;
    const char *why = link->world_failed(link->user);
    if (result == ncclInProgress)
        snprintf(
            n->refused, sizeof n->refused,
            "NCCL has not connected the GPUs along %s within %d s; NCCL_DEBUG=INFO says what NCCL waits for",
            link->name, PATIENCE);
    else
        snprintf(n->refused, sizeof n->refused, "%s%s", why || link->comm ? "" : "NCCL: ",
                 why          ? why
                 : link->comm ? nccl_error_text(link, result, text, sizeof text)
                              : nccl.ncclGetErrorString(result));
    if (link->comm)
        nccl.ncclCommAbort(link->comm);
    return ax_fail(AX_ERR_COMM, "%s", n->refused);
}

static ax_status link_open(ax_device *dev, const ax_link_group *group, ax_link **out)
{
    ax_cuda *cu = cuda_of(dev);
    ax_link *link;
    *out = NULL;
    cudaSetDevice(cu->ordinal);
    AX_TRY(ensure_state(cu));
    AX_CHECK(!cu->nccl->failed, AX_ERR_COMM, "%s", cu->nccl->why);
    AX_TRY(ax_calloc(1, sizeof *link, &link));
    *link = (ax_link){.next = cu->nccl->links,
                      .cu = cu,
                      .rank = group->rank,
                      .size = group->size,
                      .world_failed = group->failed,
                      .user = group->user};
    snprintf(link->name, sizeof link->name, "%s", group->name);
    ax_status status = init_comm(link, group->unique_id);
    if (status != AX_OK) {
        free(link);
        return status;
    }
    cu->nccl->links = *out = link;
    return AX_OK;
}

/* Closes a link. First waits until the collectives in flight on this GPU are complete, then for
 * ncclCommFinalize, each for at most PATIENCE seconds. If either takes longer or fails, aborts the
 * communicator. */
static void link_close(ax_link **out)
{
    ax_link *link = *out;
    struct ax_nccl *n = link->cu->nccl;
    cudaSetDevice(link->cu->ordinal);
    if (link->comm && cudaEventRecord(n->last, n->stream) == cudaSuccess)
        ax_nccl_reach(link->cu, n->last, true);
    if (link->comm && wait_nccl(link, nccl.ncclCommFinalize(link->comm), PATIENCE) == ncclSuccess)
        nccl.ncclCommDestroy(link->comm);
    else if (link->comm)
        nccl.ncclCommAbort(link->comm);
    for (int i = 0; i < RING; i++)
        if (n->ring[i].link == link)
            n->ring[i].link = NULL;
    ax_link **at = &n->links;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    free(link);
    *out = NULL;
}

/* ---- collectives --------------------------------------------------------------------------------- */

static ncclDataType_t type_of(ax_dtype dtype)
{
    switch (dtype) {
    case AX_F64:
        return ncclFloat64;
    case AX_F32:
        return ncclFloat32;
    case AX_BF16:
        return ncclBfloat16;
    case AX_F16:
        return ncclFloat16;
    case AX_I32:
        return ncclInt32;
    default:
        AX_ASSERT(dtype == AX_I64); /* the public collectives reject other dtypes */
        return ncclInt64;
    }
}

static ncclResult_t all_to_all(const ax_link *link, const ax_coll_args *a, size_t bytes, cudaStream_t stream)
{
    ncclResult_t result = nccl.ncclGroupStart();
    for (int r = 0; r < link->size && result == ncclSuccess; r++) {
        size_t at = (size_t)r * bytes;
        result = nccl.ncclSend((const char *)a->send + at, bytes, ncclInt8, r, link->comm, stream);
        if (result == ncclSuccess)
            result = nccl.ncclRecv((char *)a->recv + at, bytes, ncclInt8, r, link->comm, stream);
    }
    ncclResult_t ended = nccl.ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

/* Calls NCCL's function for a collective. Collectives that do not reduce are called with counts of bytes. */
static ncclResult_t call_nccl(const ax_link *link, const ax_coll_args *a, cudaStream_t stream)
{
    size_t count = (size_t)a->count, bytes = count * ax_dtype_size(a->dtype);
    ncclRedOp_t op = a->op == AX_MAX ? ncclMax : ncclSum;
    switch (a->coll) {
    case AX_ALL_REDUCE:
        return nccl.ncclAllReduce(a->send, a->recv, count, type_of(a->dtype), op, link->comm, stream);
    case AX_REDUCE_SCATTER:
        return nccl.ncclReduceScatter(a->send, a->recv, count, type_of(a->dtype), op, link->comm, stream);
    case AX_ALL_GATHER:
        return nccl.ncclAllGather(a->send, a->recv, bytes, ncclInt8, link->comm, stream);
    case AX_ALL_TO_ALL:
        return all_to_all(link, a, bytes, stream);
    case AX_BROADCAST:
        return nccl.ncclBroadcast(a->send, a->recv, bytes, ncclInt8, a->root, link->comm, stream);
    case AX_BARRIER:
        break;
    }
    return ncclInvalidUsage; /* barriers do not come here: they run on the host */
}

static ax_status start(ax_link *link, const ax_coll_args *args, int64_t *ticket)
{
    ax_cuda *cu = link->cu;
    struct ax_nccl *n = cu->nccl;
    char what[96], why[200], text[300];
    AX_CHECK(!n->failed, AX_ERR_COMM, "%s", n->why);
    cudaSetDevice(cu->ordinal);
    AX_CUDA(cudaEventRecord(n->begin, cu->stream));
    AX_CUDA(cudaStreamWaitEvent(n->stream, n->begin, 0));
    ncclResult_t result = wait_nccl(link, call_nccl(link, args, n->stream), 0);
    if (result != ncclSuccess && !n->failed) {
        ax_coll_describe(args, what, sizeof what);
        snprintf(text, sizeof text, "%s: %s", what, nccl_error_text(link, result, why, sizeof why));
        fail_links(cu, link, text);
    }
    AX_CHECK(!n->failed, AX_ERR_COMM, "%s", n->why);
    operation *o = &n->ring[n->started % RING];
    AX_CUDA(cudaEventRecord(o->done, n->stream));
    o->link = link;
    o->args = *args;
    o->number = ++link->calls;
    *ticket = n->started++;
    return AX_OK;
}

/* Makes the compute stream wait for collective number `ticket`. If the ring has reused the collective's
 * event, the event now belongs to a later collective on the same stream, and the compute stream waits longer
 * than necessary. */
static ax_status await(ax_link *link, int64_t ticket)
{
    struct ax_nccl *n = link->cu->nccl;
    cudaSetDevice(link->cu->ordinal);
    AX_CHECK(!n->failed, AX_ERR_COMM, "%s", n->why);
    AX_CUDA(cudaStreamWaitEvent(link->cu->stream, n->ring[ticket % RING].done, 0));
    return AX_OK;
}

const ax_link_ops ax_cuda_links = {.name = "nccl",
                                   .absent = absent,
                                   .place = get_bus_id,
                                   .unique_id = unique_id,
                                   .open = link_open,
                                   .close = link_close,
                                   .start = start,
                                   .await = await,
                                   .check = check};

#endif
