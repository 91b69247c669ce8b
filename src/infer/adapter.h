/* Declarations for LoRA adapters, the low-rank updates of a base model in files of their own: opening
 * (adapter.c) and merging with the base model (merge.c). */
#ifndef AXONN_INFER_ADAPTER_H
#define AXONN_INFER_ADAPTER_H

#include "axonn/infer.h"

/* Sets *base to the directory of the base model of the adapter in `dir`. If the base model is a run's
 * checkpoint, reads all files of the checkpoint to verify them. The caller frees *base. */
AX_MUST_CHECK ax_status ax_adapter_find_base(const char *dir, char **base);
/* Opens the adapter in `dir`: reads adapter_config.json, finds the base model as ax_adapter_find_base does,
 * unless *base is not NULL, and opens the adapter's weight file. The caller releases *adapter, *base and *st,
 * also after an error. */
AX_MUST_CHECK ax_status ax_adapter_open(const char *dir, ax_adapter *adapter, char **base, ax_st **st);
/* Checks, by a checksum, that the weight files `base`, in directory `base_dir`, hold the weights for which
 * the adapter `st`, in directory `dir`, was made. Accepts an adapter that has no checksum of its base model,
 * such as one that another program wrote. */
AX_MUST_CHECK ax_status ax_adapter_check_base(const ax_st *st, const char *dir, ax_st *base,
                                              const char *base_dir);
/* Checks that the copies of the base's tables (output layer, token embedding) that PEFT stores beside updates
 * of these tables (NAME.base_layer.weight) are equal to the base's, but for rounding to the dtype of the
 * copy. PEFT replaces the base's tables by them. Also fails if the adapter holds whole tables
 * (modules_to_save). ax_adapter_rules: how the names in an adapter's files may differ from those of the
 * factors; these copies are left alone. */
AX_MUST_CHECK ax_status ax_adapter_check_tables(ax_st *st, const char *dir, ax_st *base,
                                                const ax_model_config *config);
extern const ax_ckpt_rules ax_adapter_rules;
/* Sets the low-rank updates in `config`, the description of the base model, to those of the adapter. */
AX_MUST_CHECK ax_status ax_adapter_updates(const ax_adapter *adapter, const ax_st *st, const char *dir,
                                           ax_model_config *config);

/* merge.c: the two factors A and B of the low-rank update of one array of weights; NULL if the adapter does
 * not update this array. */
typedef struct ax_merge_pair {
    const ax_st_array *a, *b;
    double scale;
    bool transposed; /* the array of weights is stored as [in, out] */
} ax_merge_pair;
/* Finds the factors that update the array `weights` of the base model, which becomes the array `key` of the
 * merged one. */
AX_MUST_CHECK ax_status ax_merge_factors(const ax_pretrained *model, const ax_st_array *weights,
                                         const char *key, ax_merge_pair *out);
/* The merged model needs the output layer and the token embedding as two arrays if the adapter updates one of
 * them, also if the base ties them. If the base's files hold only one of the two, sets *key to the name of
 * the other and returns the array that is there; else returns NULL. */
const ax_st_array *ax_merge_tied(const ax_pretrained *model, const char **key);
/* Adds the low-rank update `pair` to the array `from` of the base model's weights, and writes the sum to
 * array `b` of the files `to` (ax_st_plan). Needs memory, in float64, for the two factors, and for 2 MiB of
 * the array, or for one row if a row is larger. *overflows grows by the number of finite values that became
 * infinite in the dtype of `b`. */
AX_MUST_CHECK ax_status ax_merge_array(const ax_pretrained *model, const ax_merge_pair *pair,
                                       const ax_st_array *from, ax_st *to, const ax_st_array *b,
                                       int64_t *overflows);

#endif
