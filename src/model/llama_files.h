/* Declarations for the files of the families llama, mistral, ministral, qwen2 and qwen3, and of those with
 * experts, mixtral, qwen3_moe and olmoe, whose networks and config.json differ little. */
#ifndef AXONN_MODEL_LLAMA_FILES_H
#define AXONN_MODEL_LLAMA_FILES_H

#include "model/family.h"

/* Initializers of the members of ax_model_config that are equal in all of these families. */
#define AX_LLAMA_FACTS                                                                                       \
    .norm = AX_NORM_RMS, .gated = true, .activation = AX_SILU, .rope = {.theta = 10000}, .norm_eps = 1e-6,   \
    .init_std = 0.02, .plain_init = true

/* Rows of ax_family.names: key of config.json; configuration key; whether a resumed run may change the value,
 * because the value does not change what the network computes in evaluation. */
/* clang-format off */
#define AX_LLAMA_NAMES \
    {"num_hidden_layers", "model.layers"}, {"hidden_size", "model.hidden"}, \
    {"num_attention_heads", "model.heads"}, {"num_key_value_heads", "model.kv_heads"}, \
    {"head_dim", "model.head_dim"}, {"intermediate_size", "model.ffn"}, \
    {"hidden_act", "model.activation"}, {"rms_norm_eps", "model.norm_eps"}, \
    {"rope_theta", "model.rope_theta"}, {"max_position_embeddings", "model.seq_len"}, \
    {"initializer_range", "model.init_std"}, {"attention_dropout", "model.attn_dropout"}
#define AX_WINDOW_NAME {"sliding_window", "model.window"}
#define AX_EXPERTS_NAMES \
    {"num_experts_per_tok", "model.top_k"}, {"router_aux_loss_coef", "moe.balance"}
/* clang-format on */

/* Keys of config.json that all of these families read (ax_family.reads); their rule for a bias that a
 * family's models do not have. */
#define AX_LLAMA_READS                                                                                       \
    "num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size "      \
    "hidden_act max_position_embeddings rms_norm_eps initializer_range attention_dropout rope_theta "        \
    "rope_scaling rope_parameters partial_rotary_factor original_max_position_embeddings layer_types"
#define AX_LLAMA_WINDOW_READS AX_LLAMA_READS " sliding_window"
#define AX_QWEN_READS AX_LLAMA_WINDOW_READS " use_sliding_window max_window_layers"
#define AX_EXPERTS_READS                                                                                     \
    AX_LLAMA_READS " num_experts num_local_experts num_experts_per_tok router_aux_loss_coef"
/* Keys about the routers that have no effect: which outputs transformers' models return. */
#define AX_EXPERTS_IDLE "output_router_logits"
#define AX_NO_BIAS(key)                                                                                      \
    {                                                                                                        \
        key, "false null", NULL                                                                              \
    }

/* Initializers of the members of ax_family that describe the arrays in weight files. */
#define AX_LLAMA_ARRAYS                                                                                      \
    .keys = ax_llama_keys, .n_keys = AX_LLAMA_KEYS, .head = "lm_head.weight",                                \
    .table = "model.embed_tokens.weight", .prefix = "model.", .ignored = ax_llama_ignored,                   \
    .n_ignored = AX_LLAMA_IGNORED
enum { AX_LLAMA_KEYS = 21, AX_LLAMA_IGNORED = 2 };
extern const ax_key_map ax_llama_keys[AX_LLAMA_KEYS];
extern const char *const ax_llama_ignored[AX_LLAMA_IGNORED];

/* Read and set the keys of config.json that all of these families have. When ax_llama_read is called, *c must
 * have the default of each optional key. kv_heads = 0 means kv_heads = heads. */
ax_status ax_llama_read(const json_t *json, const char *path, ax_model_config *c);
ax_status ax_llama_write(const ax_model_config *c, json_t *json);

/* Read and set the keys of the rotary embedding: rope_theta and rope_scaling, or rope_parameters in newer
 * files. ax_rope_read uses c->seq_len, which the caller sets before. */
ax_status ax_rope_read(const json_t *json, const char *path, ax_model_config *c);
ax_status ax_rope_write(const ax_model_config *c, json_t *json);

/* Read and set the keys of sliding-window attention: in Mistral's models sliding_window and, in some files,
 * layer_types; in Qwen's models use_sliding_window, sliding_window, and max_window_layers or layer_types.
 * Qwen's models with experts have one window in all layers, if use_sliding_window is true.
 * Llama's models have no window: ax_llama_window_read checks that layer_types, if given, agrees. */
ax_status ax_llama_window_read(const json_t *json, const char *path, ax_model_config *c);
ax_status ax_mistral_window_read(const json_t *json, const char *path, ax_model_config *c);
ax_status ax_mistral_window_write(const ax_model_config *c, json_t *json);
ax_status ax_qwen_moe_window_read(const json_t *json, const char *path, ax_model_config *c);
ax_status ax_qwen_moe_window_write(const ax_model_config *c, json_t *json);

/* The arrays of sparse blocks where the experts are below "mlp". */
enum { AX_EXPERT_KEYS = 4 };
extern const ax_expert_key ax_mlp_expert_keys[AX_EXPERT_KEYS];
/* Read and set the keys about experts that these families have; `count`: the name of the number of experts
 * that is written (the other one is kept if it is there). When ax_experts_read is called, *c must have the
 * defaults. */
ax_status ax_experts_read(const json_t *json, const char *path, ax_model_config *c);
ax_status ax_experts_write(const ax_model_config *c, const char *count, json_t *json);
/* Read and set mlp_only_layers, the blocks without experts. */
ax_status ax_dense_read(const json_t *json, const char *path, ax_model_config *c);
ax_status ax_dense_write(const ax_model_config *c, json_t *json);

/* Read and set the keys of Qwen's models: those of all of these families, and those of the window. */
ax_status ax_qwen_read(const json_t *json, const char *path, ax_model_config *c);
ax_status ax_qwen_write(const ax_model_config *c, json_t *json);

#endif
