/* Heaps in shared memory. Read node.h first.
 *
 * A heap is a mapping of a sparse file. When the file is created, it gets the largest size that the heap can
 * ever have. In the owner's mapping only allocated pages are accessible, so that an overrun faults. The
 * peers' mappings are accessible as a whole; a peer accesses only the offsets that the owner sent it. The
 * file's blocks are reserved at each allocation (posix_fallocate), because an access to a page that a full
 * file system cannot supply would kill the process (SIGBUS). */
#include "comm/node.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* The first page of each heap (a rank's shared memory); never allocated to a caller. */
typedef struct header {
    _Atomic uint64_t token; /* random number, equal to the token in the owner's card (ax_node_card) if a peer
                               has mapped the right file */
} header;

typedef struct span {
    int64_t begin, end; /* offsets in the heap's file, whole pages */
} span;

typedef struct peer {
    char *base;
    size_t bytes; /* size of this rank's mapping of the peer's heap; 0: the peer is a rank in this process,
                     and the mapping that the peer made itself is used */
} peer;

struct ax_node {
    int rank, size, fd;
    pthread_mutex_t lock; /* protects used, n and capacity */
    span *used;           /* allocated spans in ascending order; [0] is the header */
    int n, capacity;
    ax_node_card card;
    peer *peer; /* peer[r]: rank r's heap; peer[rank] is this rank's own */
};

static header *header_of(const ax_node *node, int rank) { return (header *)node->peer[rank].base; }

static bool is_unnamed(const ax_node_card *card) { return !strncmp(card->path, "/proc/", 6); }

/* ---- the file ------------------------------------------------------------------------------------ */

static ax_status open_file(ax_node *node, const char *dir)
{
    ax_node_card *card = &node->card;
    AX_CHECK(getrandom(&card->token, sizeof card->token, 0) == (ssize_t)sizeof card->token, AX_ERR_INTERNAL,
             "cannot get a random number to name this rank's shared memory (getrandom): %s", strerror(errno));
    if (!dir) {
        node->fd = memfd_create("axonn", MFD_CLOEXEC);
        AX_CHECK(node->fd >= 0, AX_ERR_MEMORY, "cannot create this rank's shared memory (memfd_create): %s",
                 strerror(errno));
        snprintf(card->path, sizeof card->path, "/proc/%d/fd/%d", (int)getpid(), node->fd);
    } else {
        int n = snprintf(card->path, sizeof card->path, "%s/axonn-%d-%016llx", dir, (int)getpid(),
                         (unsigned long long)card->token);
        AX_CHECK(
            n < (int)sizeof card->path, AX_ERR_USAGE,
            "the path of the directory for shared memory (runtime.shared_memory) has %zu bytes, and a file "
            "in it would have more than the %d that the system opens: give a shorter one",
            strlen(dir), AX_NODE_PATH - 1);
        node->fd = open(card->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        AX_CHECK(node->fd >= 0, AX_ERR_MEMORY, "cannot create the shared memory file %s: %s", card->path,
                 strerror(errno));
    }
    AX_CHECK(!ftruncate(node->fd, (off_t)card->bytes), AX_ERR_MEMORY,
             "cannot extend the shared memory file %s to %zu bytes: %s", card->path, (size_t)card->bytes,
             strerror(errno));
    return AX_OK;
}

/* Returns the size of a heap in bytes: the size of the machine's memory, which no heap can exceed. Returns
 * less if `size` heaps of that size would not fit into the address space of one process, because each process
 * maps the heaps of all ranks. */
static size_t heap_bytes(int size)
{
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), space = (int64_t)1 << 46;
    return (size_t)ax_round_up(ax_min(memory, space / (size + 1)), HUGE_PAGE);
}

/* Reserves the blocks of a span (a range of the heap's file), and makes its pages accessible to this rank. */
static ax_status reserve_pages(ax_node *node, span s)
{
    size_t bytes = (size_t)(s.end - s.begin);
    char text[32], *base = node->peer[node->rank].base + s.begin;
    int error;
    while ((error = posix_fallocate(node->fd, s.begin, s.end - s.begin)) == EINTR) {
    }
    AX_CHECK(!error, AX_ERR_MEMORY, "cannot get %s of shared memory%s%s: %s",
             ax_format_bytes((double)bytes, text), is_unnamed(&node->card) ? "" : " in ",
             is_unnamed(&node->card) ? "" : node->card.path, strerror(error));
    AX_CHECK(!mprotect(base, bytes, PROT_READ | PROT_WRITE), AX_ERR_MEMORY,
             "cannot make %zu bytes of shared memory accessible (mprotect): %s", bytes, strerror(errno));
    if (bytes >= 4 * (size_t)HUGE_PAGE)
        madvise(base, bytes, MADV_HUGEPAGE);
    return AX_OK;
}

static void release_pages(ax_node *node, span s)
{
    size_t bytes = (size_t)(s.end - s.begin);
    if (fallocate(node->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, s.begin, s.end - s.begin))
        ax_log(AX_LOG_WARN,
               "cannot return %zu bytes of freed shared memory to the system (fallocate): %s; they stay in "
               "use while this process runs, unless it needs them again",
               bytes, strerror(errno));
    mprotect(node->peer[node->rank].base + s.begin, bytes, PROT_NONE);
}

/* ---- creation ------------------------------------------------------------------------------------ */

static ax_status init_node(ax_node *node, const char *dir)
{
    struct rlimit limit;
    AX_CHECK(getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY, AX_ERR_MEMORY,
             "shared memory needs unlimited address space: remove the limit (ulimit -v unlimited)");
    AX_TRY(ax_calloc((size_t)node->size, sizeof *node->peer, &node->peer));
    AX_TRY(open_file(node, dir));
    peer *mine = &node->peer[node->rank];
    void *base = mmap(NULL, node->card.bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, node->fd, 0);
    AX_CHECK(base != MAP_FAILED, AX_ERR_MEMORY,
             "cannot reserve %zu bytes of address space for shared memory (mmap): %s",
             (size_t)node->card.bytes, strerror(errno));
    *mine = (peer){base, node->card.bytes};
    node->card.pid = getpid();
    node->card.base = (uintptr_t)base;
    node->capacity = 16;
    AX_TRY(ax_calloc((size_t)node->capacity, sizeof *node->used, &node->used));
    node->used[0] = (span){0, PAGE};
    AX_TRY(reserve_pages(node, node->used[0]));
    node->n = 1;
    atomic_store(&header_of(node, node->rank)->token, node->card.token);
    return AX_OK;
}

ax_status ax_node_create(int rank, int size, const char *dir, size_t bytes, ax_node **out, ax_node_card *card)
{
    *out = NULL;
    memset(card, 0, sizeof *card);
    ax_node *node;
    AX_TRY(ax_calloc(1, sizeof *node, &node));
    node->rank = rank;
    node->size = size;
    node->fd = -1;
    node->card.bytes = bytes ? (uint64_t)ax_round_up((int64_t)bytes, HUGE_PAGE) : heap_bytes(size);
    pthread_mutex_init(&node->lock, NULL);
    ax_status status = init_node(node, dir);
    if (status != AX_OK) {
        ax_node_destroy(&node);
        return status;
    }
    *card = node->card;
    *out = node;
    return AX_OK;
}

static ax_status map_file(const ax_node_card *card, peer *out)
{
    int fd = open(card->path, O_RDWR | O_CLOEXEC);
    AX_CHECK(fd >= 0, AX_ERR_COMM, "cannot open the shared memory %s of another rank: %s", card->path,
             strerror(errno));
    struct stat file;
    bool whole = !fstat(fd, &file) && (uint64_t)file.st_size == card->bytes;
    void *base = whole ? mmap(NULL, card->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
                       : MAP_FAILED;
    close(fd);
    AX_CHECK(base != MAP_FAILED, AX_ERR_COMM,
             "cannot map the shared memory %s of another rank: its size is not %llu bytes, or this process's "
             "address space is limited (ulimit -v)",
             card->path, (unsigned long long)card->bytes);
    *out = (peer){base, card->bytes};
    return AX_OK;
}

/* Maps the heap of another rank. If that rank is in another PID namespace, its /proc path can lead to the
 * file of a different process, so the token in the file is compared. */
static ax_status attach_peer(const ax_node_card *card, peer *out)
{
    AX_CHECK(card->token, AX_ERR_COMM,
             "the other rank could not create its shared memory; the message of that rank says why");
    AX_TRY(map_file(card, out));
    AX_CHECK(atomic_load(&((header *)out->base)->token) == card->token, AX_ERR_COMM,
             "%s is not the file that the other rank created: do the ranks run in different containers?",
             card->path);
    if (is_unnamed(card) && card->pid == getpid()) {
        munmap(out->base, out->bytes);
        *out = (peer){(char *)(uintptr_t)card->base, 0};
        return AX_OK;
    }
    madvise(out->base, out->bytes, MADV_DONTDUMP);
    madvise(out->base, out->bytes, MADV_HUGEPAGE);
    return AX_OK;
}

ax_status ax_node_attach(ax_node *node, const ax_node_card *cards)
{
    for (int r = 0; r < node->size; r++)
        if (r != node->rank && attach_peer(&cards[r], &node->peer[r]) != AX_OK) {
            ax_error_context("this rank cannot use the shared memory of rank %d of this node", r);
            return AX_ERR_COMM;
        }
    return AX_OK;
}

void ax_node_seal(ax_node *node)
{
    if (!is_unnamed(&node->card))
        unlink(node->card.path);
}

void ax_node_destroy(ax_node **node)
{
    ax_node *n = *node;
    if (!n)
        return;
    for (int r = 0; n->peer && r < n->size; r++)
        if (n->peer[r].bytes)
            munmap(n->peer[r].base, n->peer[r].bytes);
    if (n->fd >= 0) {
        ax_node_seal(n);
        close(n->fd);
    }
    pthread_mutex_destroy(&n->lock);
    free(n->used);
    free(n->peer);
    free(n);
    *node = NULL;
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* Finds in this rank's heap the first free gap that has room for `bytes` bytes and a guard page on both
 * sides. Sets *out to the new span in this gap; spans of at least 4 huge pages begin at multiples of a huge
 * page. Makes room for one more span in the list node->used, and sets *index to the new span's position in
 * the list. */
static ax_status find_gap(ax_node *node, int64_t bytes, int *index, span *out)
{
    int64_t align = bytes >= 4 * HUGE_PAGE ? HUGE_PAGE : PAGE, begin = 0;
    int i = 1;
    for (;; i++) {
        begin = ax_round_up(node->used[i - 1].end + PAGE, align);
        if (i == node->n || begin + bytes + PAGE <= node->used[i].begin)
            break;
    }
    char block[32], all[32];
    AX_CHECK(
        begin + bytes <= (int64_t)node->card.bytes, AX_ERR_MEMORY,
        "the shared memory of this rank, %s, has no free block of %s: use fewer rows in a micro-batch, or "
        "more machines",
        ax_format_bytes((double)node->card.bytes, all), ax_format_bytes((double)bytes, block));
    if (node->n == node->capacity) {
        span *used = realloc(node->used, 2 * (size_t)node->capacity * sizeof *used);
        AX_CHECK(used, AX_ERR_MEMORY,
                 "not enough memory to list another block of this rank's shared memory (%d so far)", node->n);
        node->used = used;
        node->capacity *= 2;
    }
    *index = i;
    *out = (span){begin, begin + bytes};
    return AX_OK;
}

static ax_status alloc_locked(ax_node *node, size_t bytes, void **out)
{
    int i;
    span s;
    AX_TRY(find_gap(node, ax_round_up((int64_t)(bytes ? bytes : 1), PAGE), &i, &s));
    AX_TRY(reserve_pages(node, s));
    memmove(node->used + i + 1, node->used + i, (size_t)(node->n - i) * sizeof s);
    node->used[i] = s;
    node->n++;
    *out = node->peer[node->rank].base + s.begin;
    return AX_OK;
}

ax_status ax_node_alloc(ax_node *node, size_t bytes, void **out)
{
    *out = NULL;
    pthread_mutex_lock(&node->lock);
    ax_status status = alloc_locked(node, bytes, out);
    pthread_mutex_unlock(&node->lock);
    return status;
}

void ax_node_free(ax_node *node, void *memory)
{
    if (!memory)
        return;
    int64_t begin = (char *)memory - node->peer[node->rank].base;
    pthread_mutex_lock(&node->lock);
    int i = 1;
    while (i < node->n && node->used[i].begin != begin)
        i++;
    AX_ASSERT(i < node->n);
    if (i < node->n) {
        release_pages(node, node->used[i]);
        node->n--;
        memmove(node->used + i, node->used + i + 1, (size_t)(node->n - i) * sizeof *node->used);
    }
    pthread_mutex_unlock(&node->lock);
}

int64_t ax_node_offset(const ax_node *node, const void *memory, size_t bytes)
{
    const peer *mine = &node->peer[node->rank];
    uintptr_t at =
        (uintptr_t)memory - (uintptr_t)mine->base; /* if memory is below base, this wraps to a huge value */
    return at < mine->bytes && bytes <= mine->bytes - at ? (int64_t)at : -1;
}

/* Estimates how many resident bytes of this process belong to other ranks' heaps: the process's resident
 * shared memory minus this rank's own allocations. The allocations count as resident as a whole; parts that
 * this rank has never touched make the result too small. Shared memory of other libraries, such as MPI, makes
 * it too large. */
int64_t ax_node_foreign(ax_node *node)
{
    int64_t foreign = ax_memory_shared();
    pthread_mutex_lock(&node->lock);
    for (int i = 0; i < node->n; i++)
        foreign -= node->used[i].end - node->used[i].begin;
    pthread_mutex_unlock(&node->lock);
    return ax_max(foreign, 0);
}

void *ax_node_at(const ax_node *node, int rank, int64_t offset) { return node->peer[rank].base + offset; }
