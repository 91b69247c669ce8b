/* Runs CUDA kernels on the host. One thread runs a block; the threads of the block are fibers, which yield
 * where they wait for each other. A barrier that some threads never reach is an error. The environment
 * variable AXONN_EMULATED_GPUS gives the number of GPUs, AXONN_EMULATED_MEMORY the GiB of memory that each
 * has; without them there is one GPU with 16 GiB. */
#include "cuda_runtime.h"

#include "axonn/dev.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBERS_KNOWN_TO_ASAN
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define FIBERS_KNOWN_TO_ASAN
#endif
#ifdef FIBERS_KNOWN_TO_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

/* ax_emulated_switch(&from, to) saves the registers that a call preserves on the current stack, stores the
 * stack pointer in `from`, and continues on stack `to`. A new stack continues at the start of fiber_main. */
#ifndef __x86_64__
#error "emulated CUDA switches stacks as x86-64 does"
#endif
extern "C" void ax_emulated_switch(void **from, void *to);
asm(R"(
    .text
    .type ax_emulated_switch, @function
ax_emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size ax_emulated_switch, . - ax_emulated_switch
)");

AX_EMULATED_THREAD uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace
{

enum { WARP = 32, STACK = 256 << 10, SHARED = 227 << 10 };
enum state { DONE, READY, AT_WARP, AT_BLOCK };
/* The schedule of a kernel; each launch uses the next combination of these bits, because a GPU may do any of
 * it. BACKWARD: warps run in reverse order. GREEDY: a warp runs until it waits for other warps, instead of
 * one step at a time. EARLY: asynchronous copies are done at once, instead of at the wait. */
enum { BACKWARD = 1, GREEDY = 2, EARLY = 4, SCHEDULES = 8 };

/* An asynchronous copy that is done when its thread waits for the copy's group. */
struct async_copy {
    void *to;
    const void *from;
    size_t bytes, size;
    unsigned group;
};

struct fiber {
    void *at; /* stack pointer of the fiber while it is suspended */
    char *stack;
    void *fake_stack; /* AddressSanitizer's fake stack while it is suspended */
    state is = DONE;
    unsigned exchanges; /* warp exchanges that this thread has begun in this block */
    size_t index;       /* of the thread in its block */
    uint3 thread;
    std::vector<async_copy> copies;
    unsigned groups; /* groups of copies that this thread has committed */
};

struct warp_slots {
    /* Two buffers that alternate, because a thread may begin the next exchange while another still reads this
     * one. */
    unsigned char value[2][WARP * AX_EMULATED_SLOT];
};

/* The state with which one host thread runs blocks. */
struct machine {
    std::vector<std::unique_ptr<fiber>> fibers;
    std::vector<warp_slots> warps;
    const std::function<void()> *kernel;
    unsigned how;
    fiber *current;
    void *scheduler; /* the scheduler's stack pointer while a fiber runs */
    void *fake_stack;
    void *own_stack; /* the stack of the host thread */
    size_t own_size;
    alignas(16) char shared[SHARED];
    machine()
    {
        pthread_attr_t about;
        pthread_getattr_np(pthread_self(), &about);
        pthread_attr_getstack(&about, &own_stack, &own_size);
        pthread_attr_destroy(&about);
    }
    ~machine()
    {
        for (auto &f : fibers)
            munmap(f->stack, STACK);
    }
};
AX_EMULATED_THREAD machine *m;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "emulated CUDA: %s (block %u,%u,%u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z);
    abort();
}

/* Continues fiber f. `from` and `fake_stack` keep what is needed to continue the caller. */
void to_fiber(fiber *f, void **from, void **fake_stack)
{
    m->current = f;
    threadIdx = f->thread;
#ifdef FIBERS_KNOWN_TO_ASAN
    __sanitizer_start_switch_fiber(fake_stack, f->stack, STACK);
#else
    (void)fake_stack;
#endif
    ax_emulated_switch(from, f->at);
}

/* Suspends the current thread: continues the next ready thread of its warp or, if there is none, the
 * scheduler. */
void suspend(state next)
{
    fiber *f = m->current;
    f->is = next;
    size_t other = f->index + 1;
    while (other % WARP && m->fibers[other]->is != READY)
        other++;
    if (other % WARP) {
        to_fiber(m->fibers[other].get(), &f->at, &f->fake_stack);
    } else {
#ifdef FIBERS_KNOWN_TO_ASAN
        __sanitizer_start_switch_fiber(&f->fake_stack, m->own_stack, m->own_size);
#endif
        ax_emulated_switch(&f->at, m->scheduler);
    }
#ifdef FIBERS_KNOWN_TO_ASAN
    __sanitizer_finish_switch_fiber(f->fake_stack, nullptr, nullptr);
#endif
}

/* The body of a fiber. It is used again for threads of later blocks. */
void fiber_main()
{
#ifdef FIBERS_KNOWN_TO_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        (*m->kernel)();
        suspend(DONE);
    }
}

void need_fibers(size_t count)
{
    while (m->fibers.size() < count) {
        std::unique_ptr<fiber> f = std::make_unique<fiber>();
        f->stack = (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (f->stack == MAP_FAILED)
            fail("no memory for fibers");
        void **top = (void **)(f->stack + STACK) -
                     2; /* as after a call: the stack pointer is 8 below a multiple of 16 */
        top[0] = (void *)fiber_main;
        f->at = top - 6; /* room for the registers that the switch restores; they are 0 */
        m->fibers.push_back(std::move(f));
    }
    m->warps.resize((count + WARP - 1) / WARP);
}

/* Makes the threads of complete barriers ready. Returns false if there is none. */
bool release_barriers(size_t count)
{
    bool all_at_block = true, any = false;
    for (size_t w = 0; w < count; w += WARP) {
        bool all_at_warp = true;
        for (size_t i = w; i < w + WARP; i++) {
            all_at_warp = all_at_warp && m->fibers[i]->is == AT_WARP;
            all_at_block = all_at_block && (m->fibers[i]->is == AT_BLOCK || m->fibers[i]->is == DONE);
        }
        for (size_t i = w; all_at_warp && i < w + WARP; i++)
            m->fibers[i]->is = READY;
        any = any || all_at_warp;
    }
    for (size_t i = 0; all_at_block && i < count; i++)
        if (m->fibers[i]->is == AT_BLOCK) {
            m->fibers[i]->is = READY;
            any = true;
        }
    return any;
}

/* Runs f and the ready threads of its warp after it, each until it waits. */
void run_from(fiber *f)
{
    to_fiber(f, &m->scheduler, &m->fake_stack);
#ifdef FIBERS_KNOWN_TO_ASAN
    __sanitizer_finish_switch_fiber(m->fake_stack, nullptr, nullptr);
#endif
}

/* Runs each ready thread of a warp once; in a greedy schedule, again until the warp waits for other warps. */
void run_warp(size_t first)
{
    for (bool on = true; on;) {
        size_t i = first;
        while (i < first + WARP && m->fibers[i]->is != READY)
            i++;
        if (i < first + WARP)
            run_from(m->fibers[i].get());
        on = m->how & GREEDY;
        for (i = first; i < first + WARP; i++)
            on = on && m->fibers[i]->is == AT_WARP;
        for (i = first; on && i < first + WARP; i++)
            m->fibers[i]->is = READY;
    }
}

void run_block(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fiber *f = m->fibers[i].get();
        f->is = READY;
        f->exchanges = 0;
        f->groups = 0;
        f->copies.clear();
        f->index = i;
        f->thread = {(unsigned)(i % blockDim.x), (unsigned)(i / blockDim.x % blockDim.y),
                     (unsigned)(i / blockDim.x / blockDim.y)};
    }
    const size_t warps = count / WARP;
    do {
        for (size_t n = 0; n < warps; n++)
            run_warp((m->how & BACKWARD ? warps - 1 - n : n) * WARP);
    } while (release_barriers(count));
    for (size_t i = 0; i < count; i++)
        if (m->fibers[i]->is != DONE)
            fail("threads wait at a barrier that others of their warp or block do not reach");
}

} // namespace

void *ax_emulated_shared() { return m->shared; }

void ax_emulated_block_barrier() { suspend(AT_BLOCK); }

const unsigned char *ax_emulated_gather(const void *mine, size_t bytes)
{
    fiber *f = m->current;
    unsigned char *slots = m->warps[f->index / WARP].value[f->exchanges++ % 2];
    memcpy(slots + f->index % WARP * AX_EMULATED_SLOT, mine, bytes);
    suspend(AT_WARP);
    return slots;
}

static float number(uint32_t r, int half, bool fp16)
{
    uint16_t bits = (uint16_t)(r >> 16 * half);
    return fp16 ? ax_f16_to_float(bits) : ax_bf16_to_float(bits);
}

void ax_emulated_mma(float c[4], const uint32_t a[4], const uint32_t b[2], bool fp16)
{
    struct operands {
        uint32_t a[4], b[2];
    } mine, other;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    const unsigned char *all = ax_emulated_gather(&mine, sizeof mine);
    int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4;
    for (int k = 0; k < 16; k++) {
        float row[2], column[2];
        for (int i = 0; i < 2; i++) { /* rows g and g+8, columns 2t and 2t+1 */
            memcpy(&other, all + (g * 4 + k % 8 / 2) * AX_EMULATED_SLOT, sizeof other);
            row[i] = number(other.a[i + k / 8 * 2], k % 2, fp16);
            memcpy(&other, all + ((2 * t + i) * 4 + k % 8 / 2) * AX_EMULATED_SLOT, sizeof other);
            column[i] = number(other.b[k / 8], k % 2, fp16);
        }
        for (int e = 0; e < 4; e++)
            c[e] += row[e / 2] * column[e % 2];
    }
}

void ax_emulated_ldmatrix(uint32_t r[4], const void *row, bool transposed)
{
    if ((uintptr_t)row % 16)
        fail("a row of ldmatrix is not on 16 bytes");
    const unsigned char *all = ax_emulated_gather(&row, sizeof row);
    int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4;
    for (int i = 0; i < 4; i++) {
        uint16_t two[2];
        for (int half = 0; half < 2; half++) {
            const uint16_t *from;
            memcpy(&from, all + (8 * i + (transposed ? 2 * t + half : g)) * AX_EMULATED_SLOT, sizeof from);
            two[half] = from[transposed ? g : 2 * t + half];
        }
        memcpy(&r[i], two, sizeof two);
    }
}

void ax_emulated_copy_async(void *to, const void *from, size_t bytes, size_t size)
{
    if ((uintptr_t)to % size || (uintptr_t)from % size)
        fail("cp.async of addresses that are not on its size");
    if (m->how & EARLY) {
        memset(to, 0, size);
        memcpy(to, from, bytes);
        return;
    }
    m->current->copies.push_back({to, from, bytes, size, m->current->groups});
}

void ax_emulated_commit_copies() { m->current->groups++; }

void ax_emulated_wait_copies(int left)
{
    auto &copies = m->current->copies;
    size_t done = 0;
    for (; done < copies.size() && copies[done].group + (unsigned)left < m->current->groups; done++) {
        memset(copies[done].to, 0, copies[done].size);
        memcpy(copies[done].to, copies[done].from, copies[done].bytes);
    }
    copies.erase(copies.begin(), copies.begin() + (ptrdiff_t)done);
}

static std::atomic<long> blocks_run{0};

/* For tests: returns how many thread blocks have run. */
extern "C" __attribute__((visibility("default"))) long ax_emulated_blocks() { return blocks_run; }

void ax_emulated_run(dim3 grid, dim3 block, size_t shared, const std::function<void()> &thread)
{
    blocks_run += (long)grid.x * grid.y * grid.z;
    size_t count = (size_t)block.x * block.y * block.z;
    if (count % WARP)
        fail("blocks are to have whole warps");
    static thread_local std::unique_ptr<machine> own;
    if (!own)
        own = std::make_unique<machine>();
    m = own.get();
    need_fibers(count);
    m->kernel = &thread;
    m->how = (m->how + 1) % SCHEDULES;
    gridDim = {grid.x, grid.y, grid.z};
    blockDim = {block.x, block.y, block.z};
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                memset(m->shared, 0xff, shared);
                run_block(count);
            }
}

/* ---- devices ------------------------------------------------------------------------------------- */

namespace
{

enum { MOST_GPUS = 64, GIB = 16, MOST_GIB = 1024 };

/* Returns the number that an environment variable gives, within 1 … most, or `usual` if it is not set. */
int number_of(const char *variable, int usual, int most)
{
    const char *text = getenv(variable);
    return std::clamp(text ? atoi(text) : usual, 1, most);
}

/* The size of a GPU's memory: small enough that tests can ask for more. */
const size_t memory_size = (size_t)number_of("AXONN_EMULATED_MEMORY", GIB, MOST_GIB) << 30;

int gpus()
{
    static const int count = number_of("AXONN_EMULATED_GPUS", 1, MOST_GPUS);
    return count;
}

thread_local int current;

} // namespace

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
        return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
        return "cudaErrorStreamCaptureInvalidated";
    default:
        return "cudaErrorInvalidValue";
    }
}
const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorNotReady       ? "device not ready"
           : error                            ? "invalid argument"
                                              : "no error";
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = gpus();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= gpus())
        return cudaErrorInvalidValue;
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *about, int device)
{
    *about = {};
    strcpy(about->name, "GPU emulated on the host");
    about->multiProcessorCount = 2;
    about->totalGlobalMem = memory_size;
    return device >= 0 && device < gpus() ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int device)
{
    *value = 9;
    return device >= 0 && device < gpus() ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device)
{
    snprintf(out, (size_t)size, "emulated:%d", device);
    return device >= 0 && device < gpus() ? cudaSuccess : cudaErrorInvalidValue;
}

static std::mutex limits_lock;
static std::map<const void *, size_t> limits;

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int value)
{
    std::lock_guard<std::mutex> guard(limits_lock);
    if (value < 0 || value > SHARED)
        return cudaErrorInvalidValue;
    limits[kernel] = (size_t)value;
    return cudaSuccess;
}

size_t ax_emulated_shared_limit(const void *kernel)
{
    std::lock_guard<std::mutex> guard(limits_lock);
    auto found = limits.find(kernel);
    return found == limits.end() ? 48 << 10 : found->second;
}

/* ---- memory: host code that touches it faults, except while a stream of its device runs ----------- */

namespace
{

enum { PAGE = 4096, LARGE_PAGE = 2 << 20 };

struct block {
    size_t size; /* whole pages, without the guard page at the end */
    void *mapped;
    size_t mapped_size;
    int device;
};
/* Never destroyed, because streams may still run on other threads when the process ends. */
struct memories {
    std::mutex lock;
    std::map<void *, block> blocks;
    int running[MOST_GPUS]; /* the number of streams of each device that run now, over all threads */
} &memory = *new memories{};

void protect(int device, int protection)
{
    for (auto &b : memory.blocks)
        if (b.second.device == device)
            mprotect(b.first, b.second.size, protection);
}

void begin_running(int device)
{
    std::lock_guard<std::mutex> guard(memory.lock);
    if (memory.running[device]++ == 0)
        protect(device, PROT_READ | PROT_WRITE);
}

void end_running(int device)
{
    std::lock_guard<std::mutex> guard(memory.lock);
    if (--memory.running[device] == 0)
        protect(device, PROT_NONE);
}

} // namespace

/* Whether this thread captures a stream, and whether it called something that invalidates the capture. */
static thread_local bool capturing, spoiled;

/* Called first in functions that are not allowed during a capture. Invalidates a capture, and returns whether
 * there is one. */
static bool spoils_capture()
{
    spoiled = true;
    return capturing;
}

/* Fills the memory with NaN, and puts a page behind it that faults. Large blocks use huge pages, whose
 * protection changes faster. */
cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (spoils_capture())
        return cudaErrorStreamCaptureUnsupported;
    const size_t unit = bytes >= LARGE_PAGE ? LARGE_PAGE : PAGE, size = (bytes + unit - 1) / unit * unit;
    *out = nullptr;
    if (bytes > memory_size)
        return cudaErrorMemoryAllocation;
    char *all =
        (char *)mmap(nullptr, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    char *base =
        all + (unit - (uintptr_t)all % unit) % unit; /* the rest of the mapping is the guard, or unused */
    if (unit == LARGE_PAGE)
        madvise(base, size, MADV_HUGEPAGE);
    std::lock_guard<std::mutex> guard(memory.lock);
    mprotect(base, size, PROT_READ | PROT_WRITE);
    memset(base, 0xff, bytes);
    memory.blocks[base] = {size, all, size + unit, current};
    if (!memory.running[current])
        mprotect(base, size, PROT_NONE);
    *out = base;
    return cudaSuccess;
}

cudaError_t cudaFree(void *freed)
{
    if (spoils_capture())
        return cudaErrorStreamCaptureUnsupported;
    std::lock_guard<std::mutex> guard(memory.lock);
    auto found = memory.blocks.find(freed);
    if (!freed)
        return cudaSuccess;
    if (found == memory.blocks.end())
        return cudaErrorInvalidValue;
    munmap(found->second.mapped, found->second.mapped_size);
    memory.blocks.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    std::lock_guard<std::mutex> guard(memory.lock);
    *left = *all = memory_size;
    for (auto &b : memory.blocks)
        if (b.second.device == current)
            *left -= b.second.size;
    return cudaSuccess;
}

/* The bytes of pinned memory that were allocated so far, those already freed included. */
static std::atomic<long> pinned_bytes;
extern "C" __attribute__((visibility("default"))) long ax_emulated_pinned() { return pinned_bytes; }

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned)
{
    *out = bytes > memory_size ? nullptr : malloc(bytes);
    pinned_bytes += *out ? (long)bytes : 0;
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *freed)
{
    free(freed);
    return cudaSuccess;
}

/* ---- streams: their work runs when somebody waits for them --------------------------------------- */

struct item {
    std::function<bool()> ready; /* false: the item must wait; no function: it is always ready */
    std::function<void()> work;
};

/* The work captured from a stream, and the executable graph made from it. */
typedef std::vector<std::function<void()>> works;
struct CUgraph_st {
    works work;
};
struct CUgraphExec_st {
    int device;
    std::shared_ptr<const works> work;
};

struct CUstream_st {
    int device;
    cudaGraph_t captured = nullptr; /* NULL: no capture */
    bool outward = false;           /* other ranks wait for its work */
    bool computes = false;          /* it has had kernels, so it is no copy stream */
    std::mutex lock;                /* protects the queue */
    std::deque<item> queue;
    uint64_t given = 0; /* items ever added */
    std::atomic<uint64_t> done{0};
    std::mutex running;
    double now = 0; /* the stream's clock in ms: the sum of the times that its work takes */
};

namespace
{

/* Streams with work that other ranks wait for are also run by a thread, which stands for the GPU. */
struct all_streams {
    std::mutex lock;
    std::vector<cudaStream_t> outward;
    bool served = false;
} &streams = *new all_streams{};

void sleep_briefly() { usleep(50); }

/* Runs the items of a stream up to number `until`, until one is not ready; does nothing while another thread
 * runs this stream. Returns whether it ran any. */
bool advance(cudaStream_t s, uint64_t until)
{
    std::unique_lock<std::mutex> run(s->running, std::try_to_lock);
    bool any = false;
    while (run.owns_lock() && s->done < until) {
        item *next;
        {
            std::lock_guard<std::mutex> guard(s->lock);
            next = &s->queue.front();
        }
        if (next->ready && !next->ready())
            break;
        if (!any)
            begin_running(s->device);
        any = true;
        next->work();
        std::lock_guard<std::mutex> guard(s->lock);
        s->queue.pop_front();
        s->done++;
    }
    if (any)
        end_running(s->device);
    return any;
}

uint64_t given(cudaStream_t s)
{
    std::lock_guard<std::mutex> guard(s->lock);
    return s->given;
}

std::atomic<long> waits{0};

void run_until(cudaStream_t s, uint64_t until)
{
    waits += s->done < until;
    while (s->done < until)
        if (!advance(s, until))
            sleep_briefly();
}

void serve_streams()
{
    for (;;) {
        bool any = false;
        {
            std::lock_guard<std::mutex> guard(streams.lock);
            for (cudaStream_t s : streams.outward)
                any = advance(s, given(s)) || any;
        }
        if (!any)
            usleep(200);
    }
}

void append_item(cudaStream_t s, item i)
{
    std::lock_guard<std::mutex> guard(s->lock);
    s->queue.push_back(std::move(i));
    s->given++;
}

} // namespace

void ax_emulated_enqueue(cudaStream_t stream, std::function<void()> work)
{
    if (stream->captured)
        stream->captured->work.push_back(std::move(work));
    else
        append_item(stream, {{}, std::move(work)});
}

/* Enqueues a collective. Here, collectives and waits for them invalidate a capture. */
void ax_emulated_meet(cudaStream_t stream, std::function<bool()> ready, std::function<void()> work)
{
    spoils_capture();
    append_item(stream, {std::move(ready), std::move(work)});
    std::lock_guard<std::mutex> guard(streams.lock);
    if (!stream->outward)
        streams.outward.push_back(stream);
    stream->outward = true;
    if (!streams.served)
        std::thread(serve_streams).detach();
    streams.served = true;
}

void ax_emulated_spend(cudaStream_t stream, double ms)
{
    stream->computes = true;
    ax_emulated_enqueue(stream, [=] { stream->now += ms; });
}

int ax_emulated_device(cudaStream_t stream) { return stream ? stream->device : current; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = new CUstream_st;
    (*stream)->device = current;
    return cudaSuccess;
}

/* For tests: returns how often the host waited for unfinished work. */
extern "C" __attribute__((visibility("default"))) long ax_emulated_waits() { return waits; }

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream->captured && spoils_capture())
        return cudaErrorStreamCaptureUnsupported;
    run_until(stream, given(stream));
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaStreamSynchronize(stream);
    {
        std::lock_guard<std::mutex> guard(streams.lock);
        auto &all = streams.outward;
        all.erase(std::remove(all.begin(), all.end(), stream), all.end());
    }
    stream->running.lock(); /* waits for a thread that still runs this stream */
    stream->running.unlock();
    delete stream;
    return cudaSuccess;
}

/* ---- graphs -------------------------------------------------------------------------------------- */

static std::atomic<long> graphs{0}, refused_captures{0}, refused_launches{0};

/* For tests: the number of graph launches; and how many of the next captures and graph launches must fail. */
extern "C" __attribute__((visibility("default"))) long ax_emulated_graphs() { return graphs; }
extern "C" __attribute__((visibility("default"))) void ax_emulated_refuse(long captures, long launches)
{
    refused_captures = captures;
    refused_launches = launches;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    if (stream->captured)
        return cudaErrorInvalidValue;
    stream->captured = new CUgraph_st;
    capturing = true;
    spoiled = refused_captures > 0 && refused_captures-- > 0;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaGraph_t captured = stream->captured;
    *graph = nullptr;
    stream->captured = nullptr;
    capturing = false;
    if (!captured)
        return cudaErrorInvalidValue;
    if (spoiled) {
        delete captured;
        return cudaErrorStreamCaptureInvalidated;
    }
    *graph = captured;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new CUgraphExec_st{current, std::make_shared<const works>(graph->work)};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    return exec->device == stream->device ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (exec->device != stream->device || stream->captured)
        return cudaErrorInvalidValue;
    if (refused_launches > 0 && refused_launches-- > 0)
        return cudaErrorMemoryAllocation;
    graphs++;
    ax_emulated_enqueue(stream, [work = exec->work] {
        for (const std::function<void()> &w : *work)
            w();
    });
    return cudaSuccess;
}

/* ---- copies and events --------------------------------------------------------------------------- */

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    ax_emulated_enqueue(stream, [=] { memset(to, value, bytes); });
    return cudaSuccess;
}

/* The work of a stream runs when somebody waits for it or asks whether it is done. A copy on a copy stream
 * may also be early, or late: it runs when it is enqueued (0), if the events that it waits for can be
 * reached, or when somebody asks for it the first time (1) or later (4). So a missing wait shows, before a
 * copy as well as after it. */
static const long polls_of_turns[] = {0, 1, 4};
static std::atomic<unsigned> copies{0};
static std::atomic<long> delay{-1};

/* For tests: later copies on copy streams run at the poll with this number; below 0: by turns. */
extern "C" __attribute__((visibility("default"))) void ax_emulated_delay_copies(long polls) { delay = polls; }

/* Like a copy from pinned memory: the source is read when the stream reaches the copy. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
    auto work = [=] { memcpy(to, from, bytes); };
    if (stream->captured || stream->computes) {
        ax_emulated_enqueue(stream, work);
        return cudaSuccess;
    }
    long polls = delay;
    if (polls < 0) {
        unsigned hash = copies++ * 2654435761u >> 16; /* turns that no loop of copies repeats */
        polls = polls_of_turns[hash % 3];
    }
    append_item(stream, {[left = polls]() mutable { return --left <= 0; }, work});
    if (polls == 0)
        advance(stream, given(stream));
    return cudaSuccess;
}

/* An event is complete when all work that was in its stream at the time of the record is done. */
struct CUevent_st {
    int device;
    cudaStream_t stream;
    uint64_t at;
    bool timed;
    std::shared_ptr<double> reached; /* the stream's clock at the event */
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = new CUevent_st{current, nullptr, 0, !(flags & cudaEventDisableTiming), nullptr};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (event->device != stream->device)
        return cudaErrorInvalidResourceHandle;
    if (stream->captured && spoils_capture()) /* the plugin never records an event into a graph */
        return cudaErrorStreamCaptureUnsupported;
    event->stream = stream;
    if (event->timed) {
        auto reached = event->reached = std::make_shared<double>(-1);
        ax_emulated_enqueue(stream, [=] { *reached = stream->now; });
    }
    event->at = given(stream);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    if (!begin->reached || !end->reached || *begin->reached < 0 || *end->reached < 0)
        return cudaErrorInvalidValue;
    *ms = (float)(*end->reached - *begin->reached);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->stream)
        run_until(event->stream, event->at);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (spoils_capture())
        return cudaErrorStreamCaptureUnsupported;
    if (!event->stream || event->stream->done >= event->at)
        return cudaSuccess;
    advance(event->stream, event->at);
    return event->stream->done >= event->at ? cudaSuccess : cudaErrorNotReady;
}

/* Later work of `stream` waits for the event as it was last recorded. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    cudaStream_t other = event->stream;
    uint64_t at = event->at;
    if (stream->captured && spoils_capture())
        return cudaErrorStreamCaptureUnsupported;
    if (other && other != stream)
        append_item(stream,
                    {[=] { return other->done >= at || (advance(other, at), other->done >= at); }, [] {}});
    return cudaSuccess;
}
