/* A stand-in for NCCL between emulated GPUs. A communicator is a directory. When its stream reaches an
 * operation, a rank writes the data it sends to a file there, and reads the other ranks' files when all
 * exist. So ranks may be threads or processes. A rank deletes its file of an operation after the next
 * operation.
 *
 * It is stricter than the library. All ranks must make the same calls, and a rank that waits longer than
 * AXONN_EMULATED_PATIENCE seconds (120) fails; both are asynchronous errors, with a message on stderr. It
 * sums in the order of a ring: each chunk starts at another rank, and each addition is rounded. */
#include "nccl.h"
#include "cuda_runtime.h"

#include "axonn/dev.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

namespace
{

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND_RECV };
const char *const names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                             "ncclSend and ncclRecv"};

struct call {
    int kind, type, op, root;
    uint64_t count;
    bool operator==(const call &o) const
    {
        return kind == o.kind && type == o.type && op == o.op && root == o.root && count == o.count;
    }
};

struct part {
    const char *send;
    char *recv;
    size_t sent, received;
};

} // namespace

/* A communicator's state. It lives until its last operation has ended, even if its owner destroys the
 * communicator before. */
struct group {
    std::string dir;
    int rank, ranks, device;
    double patience;
    std::atomic<int> state{ncclInProgress}; /* what ncclCommGetAsyncError returns */
    std::atomic<bool> aborted{false};
    std::atomic<uint64_t> given{0}, done{0};
    uint64_t read = 0;  /* ranks, from 0, whose files of the current operation exist */
    double waiting = 0; /* time at which the wait for the next file began; 0: no wait */

    std::string file(uint64_t number, int of) const
    {
        return dir + "/" + std::to_string(number) + "." + std::to_string(of);
    }
    bool dead() const { return aborted || (state != ncclSuccess && state != ncclInProgress); }
    void fail(ncclResult_t why, const char *what)
    {
        fprintf(stderr, "emulated NCCL: rank %d of %d: %s\n", rank, ranks, what);
        state = why;
    }
};
struct ncclComm {
    std::shared_ptr<group> g;
    bool finalized;
};

namespace
{

thread_local int depth;
struct pending {
    ncclComm_t comm;
    cudaStream_t stream;
    std::vector<part> parts;
};
thread_local std::vector<pending> in_group;

size_t size_of(int type)
{
    switch (type) {
    case ncclInt8:
        return 1;
    case ncclBfloat16:
    case ncclFloat16:
        return 2;
    case ncclInt32:
    case ncclFloat32:
        return 4;
    default:
        return 8;
    }
}

ax_dtype dtype_of(int type)
{
    switch (type) {
    case ncclBfloat16:
        return AX_BF16;
    case ncclFloat16:
        return AX_F16;
    case ncclInt32:
        return AX_I32;
    case ncclInt64:
        return AX_I64;
    case ncclFloat32:
        return AX_F32;
    default:
        return AX_F64;
    }
}

void write_file(const std::string &path, const void *head, size_t head_size, const std::vector<part> &parts)
{
    std::string hidden = path + "~";
    FILE *f = fopen(hidden.c_str(), "wb");
    bool good = f && fwrite(head, head_size, 1, f) == 1;
    for (const part &p : parts)
        good = good && (!p.sent || fwrite(p.send, p.sent, 1, f) == 1);
    if (!good || fclose(f) || rename(hidden.c_str(), path.c_str())) {
        perror(path.c_str());
        abort();
    }
}

void read_file(const std::string &path, size_t at, void *to, size_t size)
{
    FILE *f = fopen(path.c_str(), "rb");
    if (!f || fseek(f, (long)at, SEEK_SET) || (size && fread(to, size, 1, f) != 1)) {
        perror(path.c_str());
        abort();
    }
    fclose(f);
}

/* Whether all ranks have written the file of this operation. A timeout sets an asynchronous error, and the
 * wait goes on, as in the library. */
bool all_files_exist(group &g, uint64_t number, const char *what)
{
    while (g.read < (uint64_t)g.ranks && !access(g.file(number, (int)g.read).c_str(), R_OK))
        g.read++;
    if (g.read == (uint64_t)g.ranks) {
        g.read = 0;
        g.waiting = 0;
        return true;
    }
    double now = ax_now();
    g.waiting = g.waiting ? g.waiting : now;
    if (now - g.waiting > g.patience) {
        std::string text = std::string(what) + ", operation " + std::to_string(number) + ": rank " +
                           std::to_string(g.read) + " does not come";
        g.fail(ncclSystemError, text.c_str());
    }
    return false;
}

template <class T> T combine(T a, T b, int op) { return op == ncclMax ? std::max(a, b) : (T)(a + b); }

void add_up(const call &c, int ranks, const std::vector<std::vector<char>> &all, uint64_t first, uint64_t n,
            uint64_t whole, char *to)
{
    ax_dtype dtype = dtype_of(c.type);
    uint64_t chunk = (whole + (uint64_t)ranks - 1) / (uint64_t)ranks;
    for (uint64_t i = 0; i < n; i++) {
        int begin = (int)((first + i) / chunk + 1) % ranks;
        for (int k = 0; k < ranks; k++) {
            const char *x = all[(size_t)((begin + k) % ranks)].data();
            if (c.type == ncclInt64) { /* a double cannot hold every int64 */
                int64_t a, b;
                memcpy(&a, to + i * 8, 8);
                memcpy(&b, x + i * 8, 8);
                a = k ? combine(a, b, c.op) : b;
                memcpy(to + i * 8, &a, 8);
                continue;
            }
            double a = k ? ax_load(dtype, to, (int64_t)i) : 0, b = ax_load(dtype, x, (int64_t)i);
            ax_store(dtype, to, (int64_t)i, !k ? b : c.op == ncclMax ? fmax(a, b) : a + b);
        }
    }
}

void reduce(group &g, uint64_t number, const call &c, const part &p, bool scatter)
{
    size_t size = size_of(c.type);
    uint64_t first = scatter ? (uint64_t)g.rank * c.count : 0;
    uint64_t whole = scatter ? (uint64_t)g.ranks * c.count : c.count;
    std::vector<std::vector<char>> all((size_t)g.ranks, std::vector<char>(c.count * size));
    for (int r = 0; r < g.ranks; r++)
        read_file(g.file(number, r), sizeof c + first * size, all[(size_t)r].data(), c.count * size);
    std::vector<char> sum(c.count * size);
    add_up(c, g.ranks, all, first, c.count, whole, sum.data());
    memcpy(p.recv, sum.data(), sum.size());
}

/* Computes this rank's result from all ranks' files. */
void read_result(group &g, uint64_t number, const call &c, const std::vector<part> &parts)
{
    size_t bytes = c.count * size_of(c.type);
    switch (c.kind) {
    case ALL_REDUCE:
    case REDUCE_SCATTER:
        reduce(g, number, c, parts[0], c.kind == REDUCE_SCATTER);
        break;
    case ALL_GATHER:
        for (int r = 0; r < g.ranks; r++)
            read_file(g.file(number, r), sizeof c, parts[0].recv + (size_t)r * bytes, bytes);
        break;
    case BROADCAST:
        read_file(g.file(number, c.root), sizeof c, parts[0].recv, bytes);
        break;
    default:
        for (int r = 0; r < g.ranks; r++)
            read_file(g.file(number, r), sizeof c + (size_t)g.rank * bytes, parts[(size_t)r].recv, bytes);
    }
}

/* Whether all ranks have called this operation. A different call on another rank is an error. */
bool all_made_this_call(group &g, uint64_t number, const call &mine)
{
    if (g.aborted)
        return true;
    if (g.dead() || !all_files_exist(g, number, names[mine.kind]))
        return false;
    for (int r = 0; r < g.ranks && !g.dead(); r++) {
        call other;
        char text[200];
        read_file(g.file(number, r), 0, &other, sizeof other);
        if (other == mine)
            continue;
        snprintf(text, sizeof text,
                 "%s of %llu (type %d) in operation %llu, where rank %d calls %s of %llu (type %d)",
                 names[mine.kind], (unsigned long long)mine.count, mine.type, (unsigned long long)number, r,
                 names[other.kind], (unsigned long long)other.count, other.type);
        g.fail(ncclInvalidUsage, text);
    }
    return !g.dead();
}

ncclResult_t launch(ncclComm_t comm, cudaStream_t stream, const call &c, const std::vector<part> &parts)
{
    std::shared_ptr<group> g = comm->g;
    if (g->state != ncclSuccess || comm->finalized)
        return ncclInvalidUsage; /* not connected yet, or already finalized */
    if (ax_emulated_device(stream) != g->device)
        return ncclInvalidArgument;
    uint64_t number = ++g->given;
    ax_emulated_enqueue(stream, [=] {
        if (!g->dead())
            write_file(g->file(number, g->rank), &c, sizeof c, parts);
    });
    ax_emulated_meet(
        stream, [=] { return all_made_this_call(*g, number, c); },
        [=] {
            if (!g->aborted) {
                read_result(*g, number, c, parts);
                unlink(g->file(number - 1, g->rank).c_str());
            }
            g->done++;
        });
    return ncclSuccess;
}

ncclResult_t collective(int kind, const void *send, void *recv, size_t count, int type, int op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    if (!comm || (count && (!send || !recv)))
        return ncclInvalidArgument;
    if (depth)
        return ncclInvalidUsage; /* the library allows collectives in a group, but the plugin does not need
                                    them */
    size_t sent = count * size_of(type) * (size_t)(kind == REDUCE_SCATTER ? comm->g->ranks : 1);
    if (kind == BROADCAST && comm->g->rank != root)
        sent = 0;
    return launch(comm, stream, {kind, type, op, root, count}, {{(const char *)send, (char *)recv, sent, 0}});
}

part *part_of(ncclComm_t comm, int peer, cudaStream_t stream)
{
    if (!comm || peer < 0 || peer >= comm->g->ranks)
        return nullptr;
    for (pending &p : in_group)
        if (p.comm == comm)
            return &p.parts[(size_t)peer];
    in_group.push_back({comm, stream, std::vector<part>((size_t)comm->g->ranks)});
    return &in_group.back().parts[(size_t)peer];
}

/* Marks this rank as gone. The last rank removes the directory. */
void leave_group(group &g)
{
    bool last = true;
    write_file(g.dir + "/left." + std::to_string(g.rank), "", 1, {});
    for (int r = 0; r < g.ranks; r++)
        last = last && !access((g.dir + "/left." + std::to_string(r)).c_str(), R_OK);
    std::error_code ignored;
    if (last)
        std::filesystem::remove_all(g.dir, ignored);
}

/* Completes the communicator when all ranks have joined. Each must have a GPU of its own. */
void complete_group(group &g)
{
    std::vector<int> device((size_t)g.ranks);
    if (!all_files_exist(g, 0, "ncclCommInitRankConfig"))
        return;
    for (int r = 0; r < g.ranks; r++)
        read_file(g.file(0, r), 0, &device[(size_t)r], sizeof(int));
    std::sort(device.begin(), device.end());
    if (std::adjacent_find(device.begin(), device.end()) != device.end())
        g.fail(ncclInvalidUsage, "two ranks have the same GPU");
    else
        g.state = ncclSuccess;
}

} // namespace

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclSystemError:
        return "a rank did not come";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclInProgress:
        return "in progress";
    default:
        return "remote error";
    }
}
const char *ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    const char *tmp = getenv("TMPDIR");
    *id = {};
    snprintf(id->internal, sizeof id->internal, "%s/axonn-nccl-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(id->internal) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    *comm = nullptr;
    if (!config || config->blocking != 0 || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    const char *patience = getenv("AXONN_EMULATED_PATIENCE");
    auto g = std::make_shared<group>();
    g->dir = id.internal;
    g->rank = rank;
    g->ranks = ranks;
    g->device = ax_emulated_device(nullptr);
    g->patience = patience ? atof(patience) : 120;
    write_file(g->file(0, rank), &g->device, sizeof g->device, {});
    *comm = new ncclComm{g, false};
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    group &g = *comm->g;
    if (g.state == ncclInProgress)
        complete_group(g);
    *state = (ncclResult_t)g.state.load();
    if (comm->finalized && *state == ncclSuccess && g.done < g.given)
        *state = ncclInProgress;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (comm->finalized || comm->g->state != ncclSuccess)
        return ncclInvalidUsage;
    comm->finalized = true;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm->finalized || comm->g->done < comm->g->given) {
        fprintf(stderr, "emulated NCCL: ncclCommDestroy before ncclCommFinalize is done\n");
        abort();
    }
    leave_group(*comm->g);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->g->aborted = true;
    leave_group(*comm->g);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclSuccess;
    if (!depth)
        return ncclInvalidUsage;
    if (--depth)
        return ncclSuccess;
    for (pending &p : in_group) { /* only exchanges of equal size between all ranks are supported */
        size_t bytes = p.parts[0].sent;
        for (const part &one : p.parts)
            if (one.sent != bytes || one.received != bytes)
                result = ncclInvalidUsage;
        if (result == ncclSuccess)
            result = launch(p.comm, p.stream, {SEND_RECV, ncclInt8, 0, 0, bytes}, p.parts);
    }
    in_group.clear();
    return result;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return collective(ALL_REDUCE, send, recv, count, type, op, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return collective(REDUCE_SCATTER, send, recv, count, type, op, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return collective(ALL_GATHER, send, recv, count, type, 0, 0, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return collective(BROADCAST, send, recv, count, type, 0, root, comm, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    part *p = part_of(comm, peer, stream);
    if (!p || !depth)
        return ncclInvalidArgument;
    p->send = (const char *)send;
    p->sent = count * size_of(type);
    return ncclSuccess;
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    part *p = part_of(comm, peer, stream);
    if (!p || !depth)
        return ncclInvalidArgument;
    p->recv = (char *)recv;
    p->received = count * size_of(type);
    return ncclSuccess;
}
