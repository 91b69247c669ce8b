/* infer: what is done with a trained model: opening its directory, evaluation, logits, generation,
 * conversion, pruning. */
#ifndef AXONN_INFER_H
#define AXONN_INFER_H

#include "axonn/chat.h"
#include "axonn/ckpt.h"
#include "axonn/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- models from directories --------------------------------------------------------------------- */

/* A model directory opened for inference: config.json, the tokenizer if there is one, open weight files. Or a
 * LoRA adapter's directory opened together with its base model: then `config` describes the base model with
 * the adapter's low-rank updates. */
typedef struct ax_pretrained {
    char *dir;
    char *base; /* directory of an adapter's base model, with config.json and weights; NULL: `dir` holds no
                   adapter */
    ax_model_config config;
    ax_model_identity identity;
    ax_tokenizer *tokenizer; /* or NULL */
    bool untied;    /* config.json ties the output layer to the token embedding, but the weight files hold an
                       output layer with other values; the model is read as untied */
    ax_ids ends;    /* tokens that end a generated text: `eos_token_id` of generation_config.json, else
                       of config.json, else the tokenizer's end of text */
    ax_st *weights; /* open weight files, still readable after a training run has removed the checkpoint;
                       NULL: the directory has no weights */
    ax_st *adapter; /* the adapter's open weight file, or NULL */
    ax_adapter description; /* of an adapter: its adapter_config.json */
    ax_loki *loki;          /* which keys the model reads (ax_pretrained_read_keys); NULL: all */
    ax_st *turns;           /* the open file of its matrices, or NULL */
    ax_buf left; /* a line on arrays in the weight files that belong to no parameter; empty: there are none */
} ax_pretrained;

/* Opens `model`: a Hugging Face directory, an adapter's directory, a checkpoint or a run directory. The
 * caller releases *out with ax_pretrained_close. AX_ERR_DATA if files are damaged, if the weights do not
 * match config.json, or if an adapter does not fit its base model. */
AX_MUST_CHECK ax_status ax_pretrained_open(const char *model, ax_pretrained *out);
/* Opens `model` on all ranks, as ax_pretrained_open does, from the directory that rank 0 finds. If each rank
 * searched by itself, a run that is training could write a newer checkpoint between two searches. Collective
 * along world. */
AX_MUST_CHECK ax_status ax_pretrained_open_shared(ax_comm *world, const char *model, ax_pretrained *out);
void ax_pretrained_close(ax_pretrained *model);
/* Returns the rules by which parameters of a model find their arrays in files. */
ax_ckpt_rules ax_model_ckpt_rules(const ax_model_config *config);
/* Reads the weights into a parameter set of the same model. If `config` has low-rank updates and `adapter` is
 * NULL, the updates keep their values. Collective along the grid. */
AX_MUST_CHECK ax_status ax_pretrained_load(const ax_pretrained *model, ax_param_set *set);

/* How a text is continued. A value below 0 is not given. */
typedef struct ax_generation {
    double temperature, top_p, min_p; /* as in ax_sampling */
    int64_t top_k;
    double repetition_penalty; /* ax_sample_penalize; 1: none */
} ax_generation;

/* Replaces the values of *how that are not given by those of the model's generation_config.json (of an
 * adapter its own, else its base's), or by defaults: temperature 1, all tokens, no penalty. `do_sample:
 * false` there means temperature 0 if no value of the sampling was given. `said` gets what the file decided,
 * "" if nothing: "temperature 0.7, top-p 0.8". `left` gets the keys of the file that change in transformers
 * which tokens are taken, and have no effect here: "typical_p, num_beams". AX_ERR_DATA if the file is damaged
 * or a value in it is not allowed. */
AX_MUST_CHECK ax_status ax_pretrained_generation(const ax_pretrained *model, ax_generation *how,
                                                 char said[160], char left[160]);

/* What ax_model_convert has written. */
typedef struct ax_conversion {
    int arrays, converted; /* number of arrays; number of arrays whose dtype changed */
    int merged;            /* number of arrays to which an adapter's update was added */
    int files;             /* number of weight files that were written */
    int64_t bytes;         /* total size of the weight files and their index */
    int64_t overflows;     /* number of finite values that became infinite in the new dtype */
} ax_conversion;

typedef struct ax_conversion_args {
    const char *dir;     /* a model directory (ax_ckpt_find_model) of any family; no network is built. Or an
                            adapter's directory: the result is the base model with the adapter's updates
                            added */
    const char *out;     /* the directory to write, whose parent exists */
    ax_dtype dtype;      /* dtype to which arrays of F64, F32, BF16 or F16 are converted; AX_DTYPE_COUNT: no
                            conversion */
    int64_t shard_bytes; /* largest size of a weight file; 0: 5 GB (ax_st_plan) */
    int64_t experts, top_k; /* ax_model_upcycle: how many experts a block gets, and each token chooses */
    /* Called before each part of an array is copied, with the number of bytes copied so far (`done`) and of
     * all bytes (`total`); may be NULL. If it returns false, the conversion ends with AX_ERR_SIGNAL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user;
} ax_conversion_args;

/* Writes a copy of a model directory: its arrays with the same keys and shapes, config.json with the new
 * dtype, and the other files of a model that checkpoints copy (such as the tokenizer). The copy is written to
 * a hidden directory beside `out`, synced and renamed; if it fails, nothing remains. The conversion needs
 * memory for the headers and config.json, and 4 MiB for arrays of any size; for an adapter, also for two
 * factors in float64. AX_ERR_USAGE: `out` exists. AX_ERR_DATA: a damaged file, or no disk space. Not
 * collective. */
AX_MUST_CHECK ax_status ax_model_convert(const ax_conversion_args *args, ax_conversion *result);

/* As ax_model_convert, but writes a model with experts: each is a copy of the dense model's MLP, and the
 * routers are random, the same in each call (ax_model_config_upcycle). The new model computes what the dense
 * one does. AX_ERR_USAGE also: `dir` is an adapter, or a model that cannot become one with experts. */
enum { AX_UPCYCLE_SEED = 1234 };
AX_MUST_CHECK ax_status ax_model_upcycle(const ax_conversion_args *args, ax_conversion *result);

/* Which elements compete for the places of those that are kept. */
typedef enum ax_prune_scope {
    AX_PRUNE_MATRIX, /* those of one matrix: all matrices get the same density */
    AX_PRUNE_MODEL   /* those of all matrices */
} ax_prune_scope;

typedef struct ax_pruning_args {
    const char *dir; /* a model directory (ax_ckpt_find_model), not an adapter's */
    const char *out; /* the directory to write, whose parent exists */
    double density;  /* which part of the elements is kept: in (0, 1] */
    ax_prune_scope scope;
    /* [skips]: matrices that are not pruned: names of matrices in all blocks (ax_model_config_matrix_is), or
     * shell patterns (*, ?) for names of arrays in the weight files: "model.layers.0.*". A pattern means all
     * matrices in such an array. */
    const char *const *skip;
    int skips;
    bool (*progress)(void *user, int64_t done, int64_t total); /* as in ax_conversion_args */
    void *user;
} ax_pruning_args;

/* A matrix of a block. */
typedef struct ax_pruned_matrix {
    ax_matrix matrix;
    int64_t block;
    char *array;            /* name of the array in the weight files that holds the matrix; owned */
    int64_t elements, kept; /* number of elements; of those that are not zero in the result (0 if skipped) */
    bool skipped;
} ax_pruned_matrix;

/* What ax_model_prune has done. The caller releases it with ax_pruning_fini. */
typedef struct ax_pruning {
    int64_t n;
    ax_pruned_matrix *matrix; /* [n]: block by block, in the order of ax_matrix */
    int64_t elements, kept;   /* sums over the matrices that are not skipped */
    int64_t chosen;     /* number of elements that the density keeps; more than `kept` if zeros are among
                           them */
    ax_conversion copy; /* the files that were written */
} ax_pruning;

/* Writes a copy of a model directory in which all but the largest magnitudes of the matrices of its blocks
 * (AX_MATRIX_Q to AX_MATRIX_DOWN) are zero. Exactly round(density · n) elements are kept, with n the elements
 * of each matrix or of all of them (`scope`); of equal magnitudes the first in row-major order of the
 * matrix's array, in earlier blocks, in earlier matrices of ax_matrix. Magnitudes are compared as fp32. Kept
 * elements keep their bits and all arrays their dtype; zeros become +0. All else is copied as by
 * ax_model_convert; arrays that share a weight file in the source share one in the copy. Needs 8 MiB of
 * memory beside the headers, or more if a row of a matrix has more than 2^18 elements. AX_ERR_USAGE: `out`
 * exists, `dir` is an adapter's, the density is not in (0, 1], `skip` has a word that means no matrix, or
 * names all of them. AX_ERR_DATA: a damaged file, an element that is not finite as fp32, or no disk space.
 * Not collective. */
AX_MUST_CHECK ax_status ax_model_prune(const ax_pruning_args *args, ax_pruning *result);
void ax_pruning_fini(ax_pruning *pruning);

/* The result of an evaluation of a model on token sources. */
typedef struct ax_evaluation {
    double loss_sum; /* over all targets, in nats */
    int64_t targets;
    int64_t untargeted;   /* tokens that are not targets: the first of the source or of each document,
                             those that a mask excludes, and those of rows that were not evaluated */
    int64_t begins;       /* number of those among them that the tokenizer puts before each text */
    int64_t bytes;        /* bytes of the text; -1: unknown, or not all of the text was evaluated */
    double loss;          /* loss_sum / targets; NaN if there is no target */
    double bits_per_byte; /* NaN if `bytes` is -1, or if there is no target */
} ax_evaluation;

/* Called on each rank before each micro-batch (with pipeline stages: before each group of several
 * micro-batches), with the number of rows done and of all rows. If the function returns false on any rank,
 * the evaluation fails with AX_ERR_SIGNAL on all ranks. */
typedef bool ax_eval_progress_fn(void *user, int64_t done, int64_t total);

/* Evaluates the engine's model on max_rows rows (0: all), spread evenly over a token source, and adds the
 * result to *evaluation, which the caller zeroes before the first source. Bits per byte include log2(vocab)
 * bits for each untargeted token, to be comparable with the bits per byte of a compressor; but none for the
 * token that the tokenizer puts before each text (ax_data_info.begin_id), because it is known. `progress` may
 * be NULL. AX_ERR_DATA if the source has no rows. Collective along the grid. */
AX_MUST_CHECK ax_status ax_engine_eval_data(ax_engine *engine, const ax_data *data, const ax_row_shape *shape,
                                            int64_t max_rows, ax_eval_progress_fn *progress, void *user,
                                            ax_evaluation *evaluation);

/* Evaluates the model on all rows of a token source, rows of `shape`, in micro-batches of `batch` rows
 * (ax_engine_options.micro_batch); `progress` may be NULL. Collective along the grid. */
AX_MUST_CHECK ax_status ax_pretrained_eval(ax_ctx *ctx, const ax_pretrained *model, const ax_data *data,
                                           const ax_row_shape *shape, int64_t batch,
                                           ax_eval_progress_fn *progress, void *user, ax_evaluation *out);

/* ---- attention that reads few keys (Loki, paper 2406.02542) -------------------------------------- */

/* Which keys a query reads, as a user says it: a count ("64"), or with a decimal point a part ("0.25"), up to
 * 1.0, which is rounded up. */
typedef struct ax_key_reading {
    const char *file; /* of ax_loki_calibrate; NULL: queries choose keys by all elements of heads */
    const char *keys; /* of those that a query sees; NULL: all */
    const char *dims; /* of a head's elements, by which queries choose; rounded up to a multiple of 8 */
    const char *per;  /* "head", "group" (ax_loki.group) or NULL: head */
} ax_key_reading;

/* Lets generators and evaluations of an open model that are created later read few keys, if `how` says so,
 * else all. Not collective. AX_ERR_USAGE or AX_ERR_DATA, with all that is wrong: of the arguments, and of a
 * file that does not belong to the model. */
AX_MUST_CHECK ax_status ax_pretrained_read_keys(ax_pretrained *model, const ax_key_reading *how);
/* Reads the matrices into the layers of a model, if there are any. Not collective. */
AX_MUST_CHECK ax_status ax_pretrained_load_turns(const ax_pretrained *model, ax_layer *root);

typedef struct ax_loki_calibration {
    const char *out; /* the file to write, whose name ends in .safetensors */
    int64_t tokens;  /* whose keys are measured, rounded to whole rows: at least 16 · head_dim */
    bool before;     /* keys before the rotary embedding; else after it */
    ax_eval_progress_fn *progress; /* or NULL */
    void *user;
} ax_loki_calibration;

/* What a calibration found, for each layer: the number of eigenvalues, from the largest on, that have 90 % of
 * the variance of keys (rank@90), mean over key heads. */
typedef struct ax_loki_ranks {
    int64_t layers, tokens, head_dim;
    double *rank; /* [layers] */
} ax_loki_ranks;
void ax_loki_ranks_fini(ax_loki_ranks *ranks);

/* Measures the covariance of the keys of each key head on rows of a token source, and writes its
 * eigenvectors, as columns, by falling eigenvalue, the largest element of each positive, to a safetensors
 * file: layers.N.turn, F32 [kv_heads, head_dim, head_dim], and layers.N.eigenvalues, F64 [kv_heads,
 * head_dim]. Its header has the checksum of the model. All ranks get the result. AX_ERR_USAGE: all that is
 * wrong with the arguments; AX_ERR_DATA: keys that are not finite, or a file that cannot be written.
 * Collective along the grid. */
AX_MUST_CHECK ax_status ax_loki_calibrate(ax_ctx *ctx, const ax_pretrained *model, const ax_data *data,
                                          const ax_loki_calibration *how, ax_loki_ranks *out);

/* ---- recall -------------------------------------------------------------------------------------- */

/* What a model reproduces of the documents of a token source. Each document has a prompt, its beginning, and
 * a target, the tokens after the prompt: those of an excerpt (ax_excerpt), or those that a mask marks
 * (ax_row_shape.answers). The tokens that greedy decoding puts after the prompt are the target if and only if
 * each token of the target has rank 0, given the true tokens before it: so nothing is generated. The caller
 * releases a result with ax_recall_fini. */
typedef struct ax_recall {
    int64_t documents; /* with enough tokens, in the order of the source */
    int64_t left_out;  /* documents with fewer tokens */
    int64_t *document; /* [documents]: index in the source */
    int64_t *start;    /* [documents]: index in the source of the first token of the target */
    int64_t *first;    /* [documents + 1]: the target of document d has items first[d] ... first[d+1]-1 of
                          `loss` and `rank` */
    double *loss;      /* of each token of the targets, in nats */
    int32_t *rank;     /* likewise: ax_target_scores */
} ax_recall;
void ax_recall_fini(ax_recall *recall);

/* Sums over documents first ... end-1 of an ax_recall. */
typedef struct ax_recall_sum {
    int64_t tokens;    /* of targets */
    int64_t recalled;  /* documents whose target greedy decoding reproduces */
    int64_t right;     /* tokens of targets before the first one that greedy decoding gets wrong */
    int64_t likeliest; /* tokens of targets that are the likeliest, given the true text before them */
    double loss;       /* of all tokens of targets */
} ax_recall_sum;
ax_recall_sum ax_recall_add_up(const ax_recall *recall, int64_t first, int64_t end);

/* Fails with AX_ERR_USAGE if prompt and target do not fit into what is read of a document: the excerpt, and a
 * row of `seq_len` tokens with the token after it. */
AX_MUST_CHECK ax_status ax_recall_check(const ax_excerpt *excerpt, int64_t seq_len);

/* Packs the excerpts of n sources into rows. excerpt->document 0: whole documents, at most as many tokens as
 * a row has, and one. shape->seq_len, tokens of a row: 0, as many as the longest excerpt has, at most
 * `positions`, those of the model. shape->mask_documents is read too; the rest of *shape is set. left_out:
 * NULL, or [n]: how many documents of each source are too short. AX_ERR_USAGE: as for ax_recall_check, or a
 * source has no index of documents; AX_ERR_DATA: all documents of a source are too short, or a file cannot be
 * read. Not collective. */
AX_MUST_CHECK ax_status ax_recall_pack(ax_data *const *sources, int n, const ax_excerpt *excerpt,
                                       int64_t positions, ax_row_shape *shape, int64_t *left_out);

/* Evaluates the targets of a source that ax_recall_pack, or for a mask ax_data_pack, has packed, one piece a
 * document, by one forward pass. All ranks get the result. The engine has the option `scores`, and rows of
 * shape->seq_len tokens; `progress` may be NULL. Collective along the grid. */
AX_MUST_CHECK ax_status ax_engine_recall(ax_engine *engine, const ax_data *data, const ax_row_shape *shape,
                                         ax_eval_progress_fn *progress, void *user, ax_recall *out);

/* Does that for a model and n sources, in micro-batches of `batch` rows. out: [n]; all are zeroed or results,
 * also after an error. Collective along the grid. */
AX_MUST_CHECK ax_status ax_pretrained_recall(ax_ctx *ctx, const ax_pretrained *model,
                                             const ax_data *const *sources, int n, const ax_row_shape *shape,
                                             int64_t batch, ax_eval_progress_fn *progress, void *user,
                                             ax_recall *out);

/* ---- generation ---------------------------------------------------------------------------------- */

typedef struct ax_generator ax_generator;

/* Continues sequences, one in each slot. A sequence is fed in chunks of a fixed size, by ax_generator_feed,
 * then token by token, all slots at a time, by ax_generator_step. The logits of a slot do not depend on what
 * the others hold. */
typedef struct ax_generator_options {
    int64_t slots;
    int64_t chunk;    /* tokens of a chunk; a shorter one is padded and takes as long */
    int64_t capacity; /* positions of each slot, at least `chunk`, at most ax_model_config_positions */
} ax_generator_options;

/* Creates a generator, and loads the weights. With strategy ax_strategy_generation the ranks of each
 * coordinate along data have slots of their own, with ax_strategy_inference all ranks have the same.
 * AX_ERR_USAGE with others. AX_ERR_MEMORY if it does not fit. The caller owns *out. Collective along the
 * grid; the calls below are, with ax_strategy_generation, collective along all axes but data. */
AX_MUST_CHECK ax_status ax_generator_create(ax_ctx *ctx, const ax_pretrained *model,
                                            const ax_generator_options *options, ax_generator **out);
void ax_generator_destroy(ax_generator **generator);
const ax_memory *ax_generator_memory(const ax_generator *generator);

/* Sets *slots to the largest number of slots, at most options->slots, that fits into memory; 0: none. The
 * other options are those of the generator. Collective along the world. */
AX_MUST_CHECK ax_status ax_generator_most_slots(ax_ctx *ctx, const ax_pretrained *model,
                                                const ax_generator_options *options, int64_t *slots);

/* Appends n tokens to a slot, chunk by chunk. Sets *logits, unless `logits` is NULL, to the logits of the
 * last token: `vocab` floats in the generator's host memory, valid until the next call. */
AX_MUST_CHECK ax_status ax_generator_feed(ax_generator *generator, int64_t slot, const int32_t *tokens,
                                          int64_t n, const float **logits);

/* Appends tokens[slot] to each slot, except where it is AX_IDLE. Sets *logits to the logits of these tokens,
 * [slots, vocab], as above; those of idle slots are undefined. With up to 4 slots the kernels differ from
 * those for more, and so do the last bits of logits. */
enum { AX_IDLE = -1 };
AX_MUST_CHECK ax_status ax_generator_step(ax_generator *generator, const int32_t *tokens,
                                          const float **logits);

/* Makes slot `to` a copy of the first `positions` tokens of slot `from`: keys and values are copied. */
AX_MUST_CHECK ax_status ax_generator_copy(ax_generator *generator, int64_t from, int64_t to,
                                          int64_t positions);

/* Drops all tokens of a slot after the first `positions`; AX_ERR_USAGE if there are fewer. With this function
 * a program generates several continuations of a prompt that it feeds once, or, with `positions` 0, feeds
 * another prompt. */
AX_MUST_CHECK ax_status ax_generator_rewind(ax_generator *generator, int64_t slot, int64_t positions);

/* Builds the model, loads its weights, computes the logits of all n positions of a sequence and passes them
 * to `take`, one position at a time, as `vocab` floats on the host. Collective along the grid. */
typedef ax_status ax_take_logits_fn(void *user, int64_t position, const float *logits, int64_t vocab);
AX_MUST_CHECK ax_status ax_pretrained_logits(ax_ctx *ctx, const ax_pretrained *model, const int32_t *tokens,
                                             int64_t n, ax_take_logits_fn *take, void *user);

/* ---- texts --------------------------------------------------------------------------------------- */

/* A text that a model continues token by token; one after the other, texts of several prompts. */
typedef struct ax_text ax_text;

typedef struct ax_text_options {
    ax_generation how;   /* all values are given (ax_pretrained_generation) */
    int64_t seed;        /* random seed of the sampling */
    int64_t max_tokens;  /* most tokens that continue a prompt, at least 1 */
    const int64_t *stop; /* [stops]: ids of tokens that end a text, in addition to the model's end tokens */
    size_t stops;
    const ax_strings *until; /* none is empty; a text ends before the first of these strings; or NULL */
    bool braces; /* a text ends with the brace } that closes the last of those that its prompt opened; braces
                    in comments and strings count */
    bool ignore_end;     /* the model's end tokens do not end a text */
    const ax_chat *chat; /* prompts are conversations of this template, texts are answers; or NULL */
    bool grows; /* each prompt goes on from the text before, like the turns of a conversation: memory for
                   longer ones is taken in advance */
    bool echo;  /* a text begins with its prompt */
} ax_text_options;

typedef enum ax_finish {
    AX_UNFINISHED,
    AX_FINISH_LENGTH, /* the text has max_tokens tokens, or fills the model's positions */
    AX_FINISH_STOP /* a token ended it: one of `stop`, of the model's, or the template's, which is not part of
                      the text; or a string, of `until` or of `braces` */
} ax_finish;

typedef struct ax_prompt {
    const int32_t *ids;      /* [n] */
    size_t n;                /* at least 1 */
    int64_t max_tokens;      /* 0: that of the options */
    const ax_strings *until; /* NULL: those of the options */
    const ax_chat *chat;     /* NULL: that of the options */
    int64_t samples;         /* how many texts continue it (ax_prompts_continue) */
    const bool *done;        /* [samples]: texts that are left out, or NULL */
} ax_prompt;

/* Creates an ax_text, which takes memory and loads the weights at its first prompt. Borrows ctx, model, and
 * what `options` points to. The context's strategy is ax_strategy_inference. */
AX_MUST_CHECK ax_status ax_text_create(ax_ctx *ctx, const ax_pretrained *model,
                                       const ax_text_options *options, ax_text **out);
void ax_text_destroy(ax_text **text);
/* Begins the text that continues a prompt of n tokens, which is the same on all ranks. Keys and values of the
 * tokens with which the text before began too are used again. The random numbers are a function of the seed,
 * the prompt's ids, `sample`, and the number of the token in the text. AX_ERR_USAGE: the prompt leaves no
 * position for a token. Collective along the world. */
AX_MUST_CHECK ax_status ax_text_start(ax_text *text, const int32_t *ids, size_t n, int64_t sample);
/* Adds the next token. All ranks get the same one. AX_ERR_USAGE: the text is finished, or was not begun.
 * Collective along the world. */
AX_MUST_CHECK ax_status ax_text_next(ax_text *text);
ax_finish ax_text_finish(const ax_text *text);
/* Returns the *n tokens that were generated, with those of a string that ended the text. This and the next
 * two results are valid until the next call of ax_text_start or ax_text_next. */
const int32_t *ax_text_ids(const ax_text *text, size_t *n);
/* Returns the *n bytes to print next: the whole characters that are new since the last call, without the
 * string that a template puts before an answer, and up to where a string may begin before which the text
 * ends. Without a tokenizer, texts are ids with spaces between. */
const char *ax_text_take(ax_text *text, size_t *n);
/* Returns the text so far, *n bytes; of an answer without what the template puts around it
 * (ax_chat_answer). */
const char *ax_text_get(const ax_text *text, size_t *n);

/* A text of ax_prompts_continue that has ended. */
typedef struct ax_continued {
    size_t prompt;      /* index of its prompt */
    int64_t sample;     /* its number among those of its prompt, from 0 */
    const char *text;   /* [size]: as ax_text_get returns it */
    const int32_t *ids; /* [n]: as ax_text_ids does */
    size_t size, n;
    ax_finish finish;
} ax_continued;
typedef ax_status ax_take_continued_fn(void *user, const ax_continued *one);

/* Continues n prompts, `batch` texts at a time on the ranks of each coordinate along data, and calls `take`
 * on all ranks for each text as soon as it has ended; an error of `take` on any rank ends the call. A text
 * begins when another has ended. On CPUs it has the same tokens, on one grid, whatever the batch, the other
 * prompts and their order are (kernels of GPUs divide their work by the size of the batch); ax_text has other
 * kernels for a text alone, and so may draw other tokens where a random number falls within rounding of a
 * boundary. All ranks have the same prompts. AX_ERR_USAGE: a prompt leaves no position for a token.
 * AX_ERR_MEMORY: the message names the largest batch that fits. The context's strategy is
 * ax_strategy_generation, with which the ranks of each coordinate along data have slots of their own, or
 * ax_strategy_inference, with which all ranks share them. Collective along the world. */
AX_MUST_CHECK ax_status ax_prompts_continue(ax_ctx *ctx, const ax_pretrained *model,
                                            const ax_text_options *options, const ax_prompt *prompts,
                                            size_t n, int64_t batch, ax_take_continued_fn *take, void *user);

#ifdef __cplusplus
}
#endif
#endif
