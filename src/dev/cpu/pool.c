/* The thread pool of a cpu device: the calling thread, and workers that sleep between kernels.
 *
 * The work of a kernel is cut into parts, and each running thread takes the next part. The caller takes parts
 * too, and waits only for parts that a worker has begun: a worker that the system does not run, because
 * another process or another rank has its core, takes no part and delays nobody. (With threads that all meet
 * at a barrier, a GEMM of 0.6 ms took 250 ms on a machine with seven processes per core.) The result of a
 * part does not depend on the thread that computes it.
 *
 * `ticket` holds, in one word, the number of parts of the job and how many of them are taken. A thread takes
 * a part by a compare-and-exchange that adds 1 to the number of taken parts. If the compare-and-exchange
 * succeeds, the part belongs to the current job, even if the thread read `ticket` during an earlier job. The
 * reason: success means that the current job has a part left, and the job cannot end before that part is
 * done.
 *
 * Jobs with as many parts as threads cut their arrays at the same places each time. In these jobs a thread
 * takes the part with its own number if no thread has taken it (`left` has a bit for each part that is not
 * taken), because the memory that the thread wrote in earlier jobs is near to its core. In other jobs the
 * parts are taken in order.
 *
 * The variables that several threads write during a job (`ticket`, `left`, `done`, `sleepers`) have cache
 * lines of their own (no false sharing). */
#include "dev/cpu/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

/* For how many seconds a thread that waits for a job, or for the end of one, spins before it sleeps.
 * SPIN_SECONDS is longer than the gap between two kernels of a step. SPIN_ALONE is for threads on cores of
 * their own, with no communication thread that may need the core: it is longer than the work that the caller
 * does alone between two kernels when a token is generated. Waking a thread takes as long as a small GEMM. */
static const double SPIN_SECONDS = 30e-6, SPIN_ALONE = 200e-6;

enum {
    LINES = 128,     /* bytes of two cache lines, because processors fetch lines of 64 bytes in pairs */
    OWN_PARTS = 1024 /* with more parts than this, parts are always taken in order */
};

typedef struct worker {
    struct ax_cpu_pool *pool;
    pthread_t thread;
    char *scratch;
    int number; /* index of the thread; the caller is 0 */
    const ax_cpu_places *places;
} worker;

struct ax_cpu_pool {
    _Alignas(LINES) _Atomic uint64_t ticket;               /* parts << 32 | taken */
    _Alignas(LINES) _Atomic uint64_t left[OWN_PARTS / 64]; /* bit i of word w: part 64·w + i is not taken */
    _Alignas(LINES) _Atomic uint32_t done;
    _Alignas(LINES) atomic_int sleepers; /* workers that sleep on the condition variable `work` */
    _Alignas(LINES) atomic_bool waiting; /* the calling thread sleeps on the condition variable `finished` */
    bool own_parts;                      /* in this job a thread prefers the part with its own number */
    ax_cpu_body *body;
    void *job;
    int workers;
    double spin;
    char *scratch;             /* scratch of the calling thread */
    _Alignas(LINES) bool stop; /* accessed under the lock */
    int ready;                 /* number of workers that have started; accessed under the lock */
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    worker worker[];
};

/* Sets the calling thread to flush subnormal operands and results to 0 while kernels run (x86-64 and aarch64
 * only): some processors need a hundred nanoseconds for a vector with a subnormal. Training makes many
 * subnormals, such as softmax weights of masked keys, and momenta of embedding rows whose token has not
 * occurred for long. Returns the previous control register. */
static uint64_t begin_flushing(void)
{
#if defined(__x86_64__)
    unsigned int before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* the bits FTZ (flush to zero) and DAZ (denormals are zero) */
    return before;
#elif defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" ::"r"(before | (UINT64_C(1) << 24)));
    return before;
#else
    return 0;
#endif
}

static void end_flushing(uint64_t before)
{
#if defined(__x86_64__)
    _mm_setcsr((unsigned int)before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(before));
#else
    (void)before;
#endif
}

static bool has_work(const ax_cpu_pool *pool)
{
    uint64_t ticket = atomic_load(&pool->ticket);
    return (uint32_t)ticket < ticket >> 32;
}

/* Takes the part with the thread's own number. If that part is taken, takes the next part that is not, where
 * part 0 comes after the last one. At least one part is left, because this thread has already counted its
 * part as taken in `ticket`. */
static int take_part(ax_cpu_pool *pool, int thread, int parts)
{
    for (int part = thread;; part = part + 1 < parts ? part + 1 : 0) {
        _Atomic uint64_t *word = &pool->left[part / 64];
        uint64_t bit = UINT64_C(1) << (part % 64);
        if ((atomic_load(word) & bit) && (atomic_fetch_and(word, ~bit) & bit))
            return part;
    }
}

/* Takes and runs parts of the current job until none is left. */
static void run_parts(ax_cpu_pool *pool, int thread, char *scratch)
{
    for (;;) {
        uint64_t ticket = atomic_load(&pool->ticket);
        uint32_t parts = (uint32_t)(ticket >> 32), taken = (uint32_t)ticket;
        if (taken >= parts)
            return;
        if (!atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket + 1))
            continue;
        int part = pool->own_parts ? take_part(pool, thread, (int)parts) : (int)taken;
        pool->body(pool->job, part, (int)parts, scratch);
        if (atomic_fetch_add(&pool->done, 1) + 1 == parts && atomic_load(&pool->waiting)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static inline void spin_pause(void)
{
#ifdef __x86_64__
    for (int i = 0; i < 16; i++)
        __builtin_ia32_pause();
#endif
}

/* Waits for a job: spins for pool->spin seconds, then sleeps. Returns false when the device is being
 * closed. */
static bool await_work(ax_cpu_pool *pool)
{
    for (double until = ax_now() + pool->spin; ax_now() < until;) {
        if (has_work(pool))
            return true;
        spin_pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!has_work(pool) && !pool->stop)
        pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    bool stop = pool->stop;
    pthread_mutex_unlock(&pool->lock);
    return !stop;
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    ax_cpu_pool *pool = w->pool;
    /* The result is not checked, because binding has succeeded for the thread that opened the device. A
     * worker that cannot be bound runs unbound. */
    if (w->places)
        ax_cpu_bind(w->places, w->number);
    begin_flushing();
    pthread_mutex_lock(&pool->lock);
    pool->ready++;
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->lock);
    while (await_work(w->pool))
        run_parts(w->pool, w->number, w->scratch);
    return NULL;
}

static void await_end(ax_cpu_pool *pool, uint32_t parts)
{
    for (double until = ax_now() + pool->spin; ax_now() < until;) {
        if (atomic_load(&pool->done) == parts)
            return;
        spin_pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->waiting, true);
    while (atomic_load(&pool->done) != parts)
        pthread_cond_wait(&pool->finished, &pool->lock);
    atomic_store(&pool->waiting, false);
    pthread_mutex_unlock(&pool->lock);
}

static void run_job(ax_cpu_pool *pool, int parts, ax_cpu_body *body, void *job)
{
    pool->body = body;
    pool->job = job;
    pool->own_parts = parts == pool->workers + 1 && parts <= OWN_PARTS;
    for (int part = 0; part < parts && pool->own_parts; part += 64)
        atomic_store(&pool->left[part / 64], ~UINT64_C(0) >> (64 - ax_min(parts - part, 64)));
    atomic_store(&pool->done, 0);
    atomic_store(&pool->ticket, (uint64_t)parts << 32);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
    }
    run_parts(pool, 0, pool->scratch);
    await_end(pool, (uint32_t)parts);
}

void ax_cpu_parallel(const ax_cpu *cpu, int parts, ax_cpu_body *body, void *job)
{
    ax_cpu_pool *pool = cpu->pool;
    uint64_t before = begin_flushing();
    if (parts > 1 && pool->workers)
        run_job(pool, parts, body, job);
    else
        for (int part = 0; part < parts; part++)
            body(job, part, parts, pool->scratch);
    end_flushing(before);
}

static void await_ready(ax_cpu_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    while (pool->ready < pool->workers)
        pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

ax_status ax_cpu_pool_create(int threads, char *scratch, const ax_cpu_places *places, bool alone,
                             ax_cpu_pool **out)
{
    size_t bytes = sizeof(ax_cpu_pool) + (size_t)(threads - 1) * sizeof(worker);
    bytes = (size_t)ax_round_up((int64_t)bytes, LINES);
    ax_cpu_pool *pool = aligned_alloc(LINES, bytes);
    AX_CHECK(pool, AX_ERR_MEMORY, "not enough memory for the %zu bytes of state of %d threads", bytes,
             threads);
    memset(pool, 0, bytes);
    pool->scratch = scratch;
    pool->spin = alone ? SPIN_ALONE : SPIN_SECONDS;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);
    for (int i = 0; i < threads - 1; i++) {
        worker *w = &pool->worker[i];
        *w = (worker){.pool = pool,
                      .scratch = scratch + (size_t)(i + 1) * AX_CPU_SCRATCH,
                      .number = i + 1,
                      .places = places};
        if (ax_thread_start(&w->thread, worker_main, w)) {
            ax_cpu_pool_destroy(&pool);
            return ax_fail(AX_ERR_MEMORY,
                           "cannot start thread %d of %d: use fewer threads, or raise the limit of processes "
                           "(ulimit -u)",
                           i + 2, threads);
        }
        pool->workers++;
    }
    await_ready(pool);
    *out = pool;
    return AX_OK;
}

void ax_cpu_pool_destroy(ax_cpu_pool **out)
{
    ax_cpu_pool *pool = *out;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->workers; i++)
        pthread_join(pool->worker[i].thread, NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
    *out = NULL;
}
