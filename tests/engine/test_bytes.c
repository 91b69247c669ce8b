/* Bytes that a whole training step transfers, counted at the communicators and compared with a closed form in
 * which every term has a name: the linear layers (arXiv 2502.08145, section "Performance model";
 * tests/nn/test_bytes.c tests single layers of uneven sizes), norm statistics, vocabulary, loss, gradients of
 * vectors, the gradient norm. Grids with one or two axes are also compared with separate formulas: they
 * transfer what Megatron-LM, FSDP, hybrid sharding and DDP do. */
#include "axonn/engine.h"
#include "support/params.h"
#include "support/ranks.h"
#include "support/sampled.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* All sizes divide by 8, and a vector's part on each of 8 ranks fills whole cache lines, so nothing is
 * padded. */
enum { L = 2, D = 128, H = 256, HEADS = 8, V = 512, T = 16, ROWS = 16, STEPS = 3, PARAMS = L * 16 + 4 };
/* Number of parameters in the blocks' matrices, and in all vectors. */
enum { BLOCKS = L * (4 * D * D + 2 * D * H), VECTORS = L * (9 * D + H) + 2 * D };
/* Of Llama: the number of arrays, and that of parameters in vectors, the weights of the norms. */
enum { LLAMA_PARAMS = L * 9 + 2, LLAMA_VECTORS = (2 * L + 1) * D };

enum { X = 1 << AX_X, Y = 1 << AX_Y, Z = 1 << AX_Z, DATA = 1 << AX_DATA, ALL = X | Y | Z | DATA };

typedef struct bytes_case {
    ax_grid_size grid;
    const char *strategy;
    ax_dtype compute;
    int recompute, zero;
    bool cached, llama;
    bool keeps;  /* what is recomputed does not communicate activations again */
    bool narrow; /* gradients of matrices are in the compute dtype */
    bool pruned; /* of the blocks' matrices, the first element of every second row is kept */
} bytes_case;

/* ---- by name ------------------------------------------------------------------------------------- */

typedef struct term {
    const char *name;
    ax_axisset axes;
    double bytes;
} term;

typedef struct terms {
    const bytes_case *of;
    int n;
    term term[128];
} terms;

static int axis_size(const bytes_case *c, int axis)
{
    const int *size = c->grid.of;
    return size[axis];
}

static double group_size(const bytes_case *c, ax_axisset axes)
{
    int g = 1;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        g *= axes >> a & 1 ? axis_size(c, a) : 1;
    return g;
}

static ax_axisset effective(const bytes_case *c, ax_axisset axes)
{
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        if (axis_size(c, a) == 1)
            axes &= (ax_axisset) ~(1u << a);
    return axes;
}

/* Adds `times` all-gathers or reduce-scatters of `bytes` each: (g-1)/g of the bytes. */
static void gather(terms *t, const char *name, ax_axisset axes, double times, double bytes)
{
    double g = group_size(t->of, axes);
    t->term[t->n++] = (term){name, effective(t->of, axes), times * bytes * (g - 1) / g};
}

/* Adds all-reduces: twice as many bytes. */
static void reduce(terms *t, const char *name, ax_axisset axes, double times, double bytes)
{
    gather(t, name, axes, 2 * times, bytes);
}

/* Returns the bytes of an element of a matrix's gradient. */
static double grad_bytes(const bytes_case *c) { return c->narrow ? (double)ax_dtype_size(c->compute) : 4; }

/* Adds one linear layer, used once per micro-batch, with k inputs split over the axes `in` and n outputs over
 * `out`. m: rows of a micro-batch on this rank; e, a: bytes of an element in kernels and in gradients;
 * `inputs`: how often its input gradient is reduced (once for q, k and v together). */
static void linear(terms *t, double m, double k, ax_axisset in, double n, ax_axisset out, int inputs)
{
    const bytes_case *c = t->of;
    double gk = group_size(c, in), gn = group_size(c, out), e = (double)ax_dtype_size(c->compute),
           a = grad_bytes(c);
    /* A forward that takes kept sums needs neither the weight nor an all-reduce. */
    double micro = ROWS * T / (m * group_size(c, Z | DATA)),
           forwards = c->recompute && !(c->keeps && gk > 1) ? 2 : 1;
    double block = k * n / (gk * gn);
    gather(t, "AG_z: weights", Z, c->cached ? 1 : micro * (forwards + 1), block * e);
    gather(t, "RS_z: gradients of weights", Z, micro, block * a);
    reduce(t, "AR: outputs", in, micro * forwards, m * n / gn * e);
    reduce(t, "AR: input gradients", out, micro * inputs, m * k / gk * e);
    reduce(t, "AR_data: gradients of weights", DATA, 1, block / c->grid.of[AX_Z] * a);
}

/* A block of Llama has seven matrices: q, k and v share their input, as gate and up do, so four input
 * gradients are reduced, as in a block of GPT-2. */
static void block_terms(terms *t, double m)
{
    linear(t, m, D, Y, D, X, 1); /* q */
    linear(t, m, D, Y, D, X, 0); /* k */
    linear(t, m, D, Y, D, X, 0); /* v */
    linear(t, m, D, X, D, Y, 1);
    linear(t, m, D, Y, H, X, 1); /* up */
    if (t->of->llama)
        linear(t, m, D, Y, H, X, 0); /* gate */
    linear(t, m, H, X, D, Y, 1);
}

/* Adds the token table [v@x.y, d], which is embedding and head. */
static void vocabulary_terms(terms *t, double m, double micro)
{
    const bytes_case *c = t->of;
    double e = (double)ax_dtype_size(c->compute), a = grad_bytes(c), width = m * D * e, y = c->grid.of[AX_Y];
    double table = V * D / (double)(c->grid.of[AX_X] * c->grid.of[AX_Y]), positions = T * D / y;
    gather(t, "vocabulary: table gathered for embedding, head and its backward", Z, c->cached ? 1 : 3 * micro,
           table * e);
    gather(t, "vocabulary: gradient of the table, of head and embedding", Z, 2 * micro, table * a);
    reduce(t, "vocabulary: gradient of the table", DATA, 1, table / c->grid.of[AX_Z] * a);
    if (!c->llama) {
        gather(t, "positions gathered", Z, c->cached ? 1 : micro, positions * e);
        gather(t, "positions: gradient", Z, micro, positions * a);
        reduce(t, "positions: gradient", DATA, 1, positions / c->grid.of[AX_Z] * a);
    }
    gather(t, "embedding: rows scattered to the residual width", Y, micro, width);
    reduce(t, "embedding: rows", X, micro, width / y);
    gather(t, "embedding: gradient gathered to whole rows", Y, micro, width);
    gather(t, "head: residual width gathered", Y, micro, width);
    gather(t, "head: input gradient scattered to the residual width", Y, micro, width);
    reduce(t, "head: input gradient", X, micro, width / y);
    reduce(t, "loss: maxima, sums and target logits", X | Y, micro, 3 * m * 4);
}

static void step_terms(terms *t)
{
    const bytes_case *c = t->of;
    double micro = ROWS / group_size(c, Z | DATA) > 1 ? 2 : 1, m = ROWS * T / group_size(c, Z | DATA) / micro,
           a = 4;
    for (int i = 0; i < L; i++)
        block_terms(t, m);
    int norms = (c->recompute && !c->keeps ? 2 : 1) * 2 * L + 1;
    int numbers = c->llama ? 1 : 2; /* of a row: RMSNorm has no mean */
    reduce(t, "norms: squares (and sums) of rows", Y, micro * norms, numbers * m * a);
    reduce(t, "norms: the same in backward", Y, micro * (2 * L + 1), numbers * m * a);
    vocabulary_terms(t, m, micro);
    /* The biases of q, k, v and up are split along x, all other vectors along y. */
    double on_x = c->llama ? 0 : L * (3 * D + H), on_y = c->llama ? LLAMA_VECTORS : VECTORS - on_x;
    reduce(t, "gradients of vectors", Z | DATA, 1, (on_x / c->grid.of[AX_X] + on_y / c->grid.of[AX_Y]) * a);
    reduce(t, "loss of the step", Z | DATA, 1, 8);
    reduce(t, "norm of the gradient", ALL, 1, 8 * (c->llama ? LLAMA_PARAMS : PARAMS));
}

/* ---- counting ------------------------------------------------------------------------------------ */

typedef struct measured {
    const bytes_case *of;
    double bytes[ALL + 1]; /* of one step of rank 0, by set of axes */
    int64_t calls;         /* collectives of all steps of rank 0, and messages that it sent */
} measured;

static int64_t bytes_along(const ax_grid *grid, ax_axisset axes) { return traffic_along(grid, axes).bytes; }

static int64_t calls_of(const ax_grid *grid)
{
    int64_t n = 0;
    for (ax_axisset axes = 1; axes <= ALL; axes++)
        if (ax_grid_effective(grid, axes) == axes)
            n += traffic_along(grid, axes).calls;
    return n;
}

static void take(const ax_grid *grid, double sign, double *bytes)
{
    for (ax_axisset axes = 0; axes <= ALL; axes++)
        if (ax_grid_effective(grid, axes) == axes)
            bytes[axes] += sign * (double)bytes_along(grid, axes);
}

static ax_status read_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    (void)source;
    for (int64_t i = 0; i < (end - first) * T; i++) {
        out->tokens[i] = (int32_t)((first * T + i) * 7 % V);
        out->targets[i] = (int32_t)((first * T + i) * 5 % V);
        out->doc_start[i] = 0;
        out->position[i] = (int32_t)(i % T);
    }
    return AX_OK;
}

static ax_status run_steps(ax_engine *engine, const ax_grid *grid, double *bytes)
{
    ax_hyper h = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    ax_step_result result;
    AX_TRY(init_pruned(ax_engine_params(engine)));
    for (h.step = 1; h.step <= STEPS; h.step++) {
        if (h.step == STEPS)
            take(grid, -1, bytes);
        AX_TRY(ax_engine_step(engine, h.step, read_rows, NULL, ROWS * T, &h));
        AX_TRY(ax_engine_result(engine, &result));
    }
    take(grid, 1, bytes);
    return AX_OK;
}

static ax_status keep_first(void *source, ax_ctx *ctx, const ax_param *p, const ax_box *box, uint64_t *bits)
{
    (void)source, (void)ctx, (void)p;
    for (int64_t r = 0; r < box->n[0]; r++)
        bits[r * ax_ceil_div(box->n[1], 64)] = (box->lo[0] + r) % 2 == 0 && box->lo[1] == 0;
    return AX_OK;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    measured *out = arg, mine = {.of = out->of};
    const bytes_case *c = out->of;
    const ax_family *family;
    AX_TRY(ax_family_find(c->llama ? "llama" : "gpt2", &family));
    ax_model_config config = ax_model_config_defaults(family);
    config.layers = L;
    config.hidden = D;
    config.heads = config.kv_heads = HEADS;
    config.ffn = H;
    config.vocab = V;
    config.seq_len = T;
    config.init_std = 0.1;
    config.tie = true;
    int rows = ROWS / (c->grid.of[AX_Z] * c->grid.of[AX_DATA]);
    ax_engine_options options = {.model = &config,
                                 .seq_len = T,
                                 .micro_batch = rows > 1 ? rows / 2 : 1,
                                 .global_batch = ROWS,
                                 .recompute = c->recompute,
                                 .clip = 1};
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    AX_TRY(ax_optim_find("adamw", &options.optim));
    if (c->pruned)
        AX_TRY(ax_masks_create(world, keep_first, NULL, &options.masks));
    AX_TRY(ax_ctx_create(world, c->grid, "cpu", 1, c->compute, 1, &ctx));
    ctx->parallel.zero = c->zero;
    ctx->parallel.narrow_grads = c->narrow;
    ctx->parallel.keep_results = c->keeps;
    ctx->parallel.weight_cache = c->cached ? 16 << 20 : 0;
    ax_status status = ax_strategy_find(c->strategy, &ctx->parallel.strategy);
    if (status == AX_OK)
        status = ax_engine_create(ctx, &options, NULL, 24 << 20, &engine);
    if (status == AX_OK)
        status = run_steps(engine, ctx->grid, mine.bytes);
    mine.calls = calls_of(ctx->grid);
    EXPECT(status != AX_OK || ax_engine_params(engine)->n == (c->llama ? LLAMA_PARAMS : PARAMS));
    ax_engine_destroy(&engine);
    ax_masks_destroy(&options.masks);
    ax_ctx_destroy(&ctx);
    if (ax_comm_rank(world) == 0)
        *out = mine;
    return status;
}

static measured measure(const bytes_case *c)
{
    measured out = {.of = c};
    const ax_grid_size *g = &c->grid;
    if (ax_comm_threads_run(grid_ranks(*g), run_rank, &out) != AX_OK)
        fail_msg("%s x=%d y=%d z=%d data=%d: %s", c->strategy, g->of[AX_X], g->of[AX_Y], g->of[AX_Z],
                 g->of[AX_DATA], ax_error_message());
    return out;
}

/* ---- comparing ----------------------------------------------------------------------------------- */

static void name_axes(ax_axisset axes, char out[32])
{
    static const char *const names[] = {"x", "y", "z", "pipe", "data"};
    out[0] = 0;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        if (axes >> a & 1)
            snprintf(out + strlen(out), 32 - strlen(out), "%s%s", out[0] ? "." : "", names[a]);
}

static void equals_terms(const measured *m, const terms *t)
{
    char axes[32];
    const bytes_case *c = m->of;
    for (ax_axisset set = 0; set <= ALL; set++) {
        double want = 0;
        for (int i = 0; i < t->n; i++)
            want += t->term[i].axes == set ? t->term[i].bytes : 0;
        if (m->bytes[set] == want)
            continue;
        for (int i = 0; i < t->n; i++)
            if (t->term[i].axes == set && t->term[i].bytes > 0)
                printf("  %12.1f  %s\n", t->term[i].bytes, t->term[i].name);
        name_axes(set, axes);
        fail_msg("%s x=%d y=%d z=%d data=%d %s%s%s: %.1f bytes went along %s, %.1f are accounted for",
                 c->strategy, c->grid.of[AX_X], c->grid.of[AX_Y], c->grid.of[AX_Z], c->grid.of[AX_DATA],
                 ax_dtype_name(c->compute),
                 c->keeps       ? " keeps"
                 : c->recompute ? " recompute"
                                : "",
                 c->cached ? " cached" : "", m->bytes[set], axes, want);
    }
}

static void every_byte_has_a_name(void **state)
{
    (void)state;
    int cases = 0;
    for (int x = 1; x <= 8; x *= 2)
        for (int y = 1; x * y <= 8; y *= 2)
            for (int z = 1; x * y * z <= 8; z *= 2)
                for (int variant = 0; variant < 5; variant++) {
                    if (cases++ % one_of(3, 9)) /* no factor of 5: each variant on several grids */
                        continue;
                    bytes_case c = {.grid = {{x, y, z, 1, 8 / (x * y * z)}},
                                    .strategy = "axonn",
                                    .compute = variant % 2 ? AX_BF16 : AX_F32,
                                    .recompute = variant == 1 || variant == 2 || variant == 4,
                                    .keeps = variant == 2 || variant == 4,
                                    .cached = variant == 2 || variant == 3,
                                    .narrow = variant == 3,
                                    .llama = variant == 4};
                    measured m = measure(&c);
                    terms t = {.of = &c};
                    step_terms(&t);
                    equals_terms(&m, &t);
                }
}

/* ---- degenerate grids ---------------------------------------------------------------------------- */

static void moves(const bytes_case *c, ax_axisset axes, double want, const char *what)
{
    measured m = measure(c);
    double all = 0;
    for (ax_axisset set = 0; set <= ALL; set++)
        all += set == axes ? 0 : m.bytes[set];
    if (m.bytes[axes] != want || all != 0)
        fail_msg("%s, %s: %.1f bytes were moved and %.1f along other axes; the formula says %.1f",
                 c->strategy, what, m.bytes[axes], all, want);
}

enum { MATRICES = BLOCKS + V * D + T * D, TABLE = V * D };

/* Returns the bytes on g ranks that every step has: all-reduces of vectors' gradients, the loss and the
 * gradient norm. */
static double bookkeeping(double g) { return 2 * (g - 1) / g * (4.0 * VECTORS + 8 + 8 * PARAMS); }

/* PyTorch DDP: an all-reduce of all gradients, however many micro-batches there are. */
static void data_parallelism_moves_what_ddp_does(void **state)
{
    (void)state;
    bytes_case c = {.grid = {{1, 1, 1, 1, 8}}, .strategy = "ddp", .compute = AX_BF16};
    moves(&c, DATA, 2 * 7 / 8.0 * 4 * MATRICES + bookkeeping(8), "gradients all-reduced in fp32");
}

/* FSDP: in each of two micro-batches weights are gathered for forward and for backward, and gradients
 * reduce-scattered. The tied token table is used twice: it has three gathers (two uses in forward, the head's
 * in backward) and two reductions. The positions' table is not needed in backward. */
static void z_moves_what_fsdp_does(void **state)
{
    (void)state;
    for (int recompute = 0; recompute < 2; recompute++) {
        bytes_case c = {
            .grid = {{1, 1, 8, 1, 1}}, .strategy = "fsdp", .compute = AX_BF16, .recompute = recompute};
        double gathered = (2 + recompute) * BLOCKS + 3 * TABLE + T * D, reduced = BLOCKS + 2 * TABLE + T * D;
        moves(&c, Z, 2 * 7 / 8.0 * (2 * gathered + 4 * reduced) + bookkeeping(8), "two micro-batches");
        c.cached = true;
        moves(&c, Z, 7 / 8.0 * (2 * MATRICES + 2 * 4 * reduced) + bookkeeping(8),
              "weights kept for the step");
    }
}

/* Hybrid sharding: FSDP in groups of z, and an all-reduce of the shards between the groups, once per step. */
static void z_and_data_move_what_hybrid_sharding_does(void **state)
{
    (void)state;
    bytes_case c = {.grid = {{1, 1, 4, 1, 2}}, .strategy = "hsdp", .compute = AX_BF16};
    measured m = measure(&c);
    double gathered = 2 * BLOCKS + 3 * TABLE + T * D, reduced = BLOCKS + 2 * TABLE + T * D;
    assert_true(m.bytes[Z] == 2 * 3 / 4.0 * (2 * gathered + 4 * reduced));
    assert_true(m.bytes[DATA] == 2 * 1 / 2.0 * 4 * MATRICES / 4);
    assert_true(m.bytes[Z | DATA] == bookkeeping(8));
    assert_true(m.bytes[X] == 0 && m.bytes[Y] == 0);
}

/* Megatron-LM: two all-reduces of activations in each block's forward and two in its backward, one of the
 * embedding, one of the head's input gradient, and three numbers per row of the loss. No gradient is reduced
 * along x. */
static void x_moves_what_megatron_does(void **state)
{
    (void)state;
    bytes_case c = {.grid = {{8, 1, 1, 1, 1}}, .strategy = "megatron", .compute = AX_BF16};
    double rows = ROWS * T, activations = (4 * L + 2) * rows * D * 2;
    moves(&c, X, 2 * 7 / 8.0 * (activations + 3 * rows * 4 + 8 * PARAMS), "activations all-reduced");
}

/* Gradients of matrices in bf16 have half the bytes of those in fp32, with each ZeRO stage and in groups of
 * z; all other bytes stay. */
static void narrow_gradients_move_half(void **state)
{
    (void)state;
    double reduced = BLOCKS + 2 * TABLE + T * D;
    for (int zero = 0; zero < 5; zero++) {
        bytes_case c = {.grid = {{1, 1, zero == 4 ? 4 : 1, 1, 2}}, .strategy = "hsdp", .compute = AX_BF16};
        c.zero = zero % 4;
        measured wide = measure(&c), narrow;
        bytes_case half = c;
        half.narrow = true;
        narrow = measure(&half);
        double of_z = 3 / 4.0 * 2 * 4 * reduced, of_data = 1 / 2.0 * 4 *
                                                           (zero == 0   ? 2.0 * MATRICES
                                                            : zero == 1 ? MATRICES
                                                            : zero == 4 ? 2.0 * MATRICES / 4
                                                                        : 2 * reduced);
        assert_true(wide.bytes[DATA] - narrow.bytes[DATA] == of_data / 2);
        assert_true(wide.bytes[Z] - narrow.bytes[Z] == (zero == 4 ? of_z / 2 : 0));
        assert_true(wide.bytes[Z | DATA] == narrow.bytes[Z | DATA]);
    }
}

/* Elements of the vector of a matrix's kept elements: half of its rows keep one, and each of the `parts` that
 * ranks have is rounded up to 64 bytes. */
static double vector(double rows, int parts)
{
    return parts * (double)ax_round_up((int64_t)rows / parts / 2, 16);
}

/* The gradients of pruned matrices are reduced as vectors of the kept elements, with padding; all other bytes
 * stay, those of weights among them. As many gradients as before are reduced together. */
static void pruned_gradients_move_what_is_kept(void **state)
{
    (void)state;
    for (int zero = 0; zero < 8; zero += zero == 1 || zero == 4 ? 2 : 1) {
        const int z = zero < 4 ? 1 : 4, parts = z * (zero % 4 ? 2 : 1);
        bytes_case c = {.grid = {{1, 1, z, 1, 2}}, .strategy = "hsdp", .compute = AX_BF16, .zero = zero % 4};
        measured dense = measure(&c), kept;
        bytes_case pruned = c;
        pruned.pruned = true;
        kept = measure(&pruned);
        /* Four matrices of D rows, up with H rows, down with D. */
        const double vectors = L * (5 * vector(D, parts) + vector(H, parts)),
                     less = 4 * (BLOCKS - vectors) / z, micro = ROWS / (2 * z) > 1 ? 2 : 1;
        const double along_data = 1 / 2.0 * less * (zero % 4 == 0 ? 2 : zero % 4 == 1 ? 1 : micro);
        assert_true(dense.bytes[DATA] - kept.bytes[DATA] == along_data);
        assert_true(dense.bytes[Z] - kept.bytes[Z] == (z - 1) * micro * less);
        assert_true(dense.bytes[Z | DATA] == kept.bytes[Z | DATA]);
        assert_int_equal(dense.calls, kept.calls);
    }
}

/* With x and y above 1, a step that recomputes and keeps results calls and sends what a step without
 * recomputation does. One that communicates again has the collectives of a block's forward on top: of four
 * groups of linear layers and two norms, two for each LayerNorm. */
static void kept_results_are_communicated_once(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        bytes_case plain = {
            .grid = {{2, 2, 1, 1, 2}}, .strategy = "axonn", .compute = AX_BF16, .llama = llama};
        bytes_case again = plain, kept;
        again.recompute = 1;
        kept = again;
        kept.keeps = true;
        const measured none = measure(&plain), twice = measure(&again), once = measure(&kept);
        const int micro = 2, calls = llama ? 6 : 8;
        assert_memory_equal(once.bytes, none.bytes, sizeof none.bytes);
        assert_int_equal(once.calls, none.calls);
        assert_int_equal(twice.calls - none.calls, STEPS * micro * L * calls);
    }
}

/* ZeRO along data: stage 1 reduce-scatters gradients and gathers the updated weights, as many elements as
 * DDP's all-reduce; stage 2 reduce-scatters in each micro-batch; stage 3 gathers at each use instead of after
 * the update. */
static void zero_moves_what_zero_does(void **state)
{
    (void)state;
    double reduced = BLOCKS + 2 * TABLE + T * D, gathered = 2 * BLOCKS + 3 * TABLE + T * D;
    bytes_case c = {.grid = {{1, 1, 1, 1, 8}}, .strategy = "ddp", .compute = AX_BF16, .zero = 1};
    moves(&c, DATA, 7 / 8.0 * (4 * MATRICES + 2 * MATRICES) + bookkeeping(8), "ZeRO-1");
    c.zero = 2;
    moves(&c, DATA, 7 / 8.0 * (2 * 4 * reduced + 2 * MATRICES) + bookkeeping(8), "ZeRO-2");
    c.zero = 3;
    moves(&c, DATA, 2 * 7 / 8.0 * (4 * reduced + 2 * gathered) + bookkeeping(8), "ZeRO-3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_has_a_name),
        cmocka_unit_test(data_parallelism_moves_what_ddp_does),
        cmocka_unit_test(z_moves_what_fsdp_does),
        cmocka_unit_test(z_and_data_move_what_hybrid_sharding_does),
        cmocka_unit_test(x_moves_what_megatron_does),
        cmocka_unit_test(zero_moves_what_zero_does),
        cmocka_unit_test(narrow_gradients_move_half),
        cmocka_unit_test(pruned_gradients_move_what_is_kept),
        cmocka_unit_test(kept_results_are_communicated_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
