/* Which values the members of adapter_config.json (PEFT's LoraConfig) may have. The table lists what is
 * allowed: values that are implemented, and values without effect on the numbers of the forward pass.
 * Everything else is refused, so that no adapter means something else here than in PEFT. */
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Kinds of JSON values. An empty text, list or object also has the kind EMPTY. */
enum {
    NONE = 1,
    OFF = 2,
    ON = 4,
    NUMBER = 8,
    TEXT = 16,
    LIST = 32,
    OBJECT = 64,
    EMPTY = 128,
    ANY = 255,
    FLAG = NONE | OFF | ON,
    UNUSED = NONE | OFF | EMPTY
};

/* A member of adapter_config.json. Its value is allowed if it has one of the `kinds`, or is one of the
 * `words`, which bars separate; a word after a tilde is compared as PEFT compares it, ignoring case. `what`
 * follows the name and value in the message that refuses another value. */
typedef struct member {
    const char *name;
    unsigned kinds;
    const char *words, *what;
} member;

#define NOT_IMPLEMENTED(what) UNUSED, NULL, what " is not implemented"
/* As NOT_IMPLEMENTED, for a member whose empty object stands for default settings in PEFT. */
#define NO_VARIANT(what) NONE | OFF, NULL, what " is not implemented"

static const member members[] = {
    {"peft_type", 0, "LORA", "only \"LORA\" is implemented"},
    {"task_type", NONE, "CAUSAL_LM", "only \"CAUSAL_LM\" is implemented"},
    {"base_model_name_or_path", TEXT | NONE, NULL, "must be the directory of the adapter's base"},
    {"r", NUMBER, NULL, "must be a number"},
    {"lora_alpha", NUMBER, NULL, "must be a number"},
    {"lora_dropout", NUMBER | NONE, NULL, "must be a number"},
    {"use_rslora", FLAG, NULL, "must be true or false"},
    {"ensure_weight_tying", FLAG, NULL, "must be true or false"},
    {"target_modules", TEXT | LIST | NONE, NULL, "must be a list of modules or a regular expression"},
    {"exclude_modules", TEXT | LIST | NONE, NULL, "must be a list of modules or a regular expression"},
    {"layers_to_transform", NUMBER | LIST | NONE, NULL, "must be a list of layers"},
    {"layers_pattern", TEXT | LIST | NONE, NULL, "must be a text or a list of texts"},
    {"rank_pattern", OBJECT | UNUSED, NULL, "must be a JSON object of module names and numbers"},
    {"alpha_pattern", OBJECT | UNUSED, NULL, "must be a JSON object of module names and numbers"},
    /* The initial values of the factors, which the stored ones replace. With other words PEFT changes the
     * weights of the base when it loads the adapter. */
    {"init_lora_weights", FLAG, "~gaussian|eva|orthogonal|~mica",
     "such an adapter may change the base model's weights, which is not implemented (PEFT converts it to an "
     "ordinary one); allowed are true, false, \"gaussian\", \"eva\", \"orthogonal\" and \"mica\""},
    /* without effect on the forward pass */
    {"auto_mapping", ANY, NULL, NULL},
    {"revision", ANY, NULL, NULL},
    {"peft_version", ANY, NULL, NULL},
    {"inference_mode", ANY, NULL, NULL},
    {"fan_in_fan_out", ANY, NULL, NULL}, /* PEFT corrects it to what the module has */
    {"merge_weights", ANY, NULL, NULL},  /* of the first versions of PEFT */
    {"megatron_core", ANY, NULL, NULL},  /* the settings of init_lora_weights and use_qalora */
    {"loftq_config", ANY, NULL, NULL},
    {"eva_config", ANY, NULL, NULL},
    {"corda_config", ANY, NULL, NULL},
    {"lora_ga_config", ANY, NULL, NULL},
    {"qalora_group_size", ANY, NULL, NULL},
    {"runtime_config", ANY, NULL, NULL},
    /* not implemented */
    {"bias", UNUSED, "none", "biases that were trained are not implemented"},
    {"use_dora", NOT_IMPLEMENTED("DoRA")},
    {"lora_bias", NOT_IMPLEMENTED("a bias of the factors")},
    {"modules_to_save", NOT_IMPLEMENTED("a module that was trained as a whole")},
    {"layer_replication", NOT_IMPLEMENTED("a layer that occurs several times")},
    {"trainable_token_indices", NOT_IMPLEMENTED("a token whose embedding was trained")},
    {"target_parameters", NOT_IMPLEMENTED("an update of parameters that are not matrices of modules")},
    {"alora_invocation_tokens", NOT_IMPLEMENTED("an update that begins at a token")},
    {"megatron_config", NOT_IMPLEMENTED("an adapter of Megatron's layers")},
    {"arrow_config", NO_VARIANT("Arrow")},
    {"kasa_config", NO_VARIANT("KaSA")},
    {"monteclora_config", NO_VARIANT("MonteCLoRA")},
    {"use_bdlora", NO_VARIANT("BD-LoRA")},
    {"use_qalora", NOT_IMPLEMENTED("QALoRA")},
    {"velora_config", NO_VARIANT("VeLoRA")},
};

/* The rule for members that the table lacks, such as those of newer versions of PEFT. */
static const member unknown = {NULL, UNUSED, NULL,
                               "this member is unknown: if it has no effect on the forward pass, remove it"};

static unsigned kinds_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return NONE;
    case JSON_FALSE:
        return OFF;
    case JSON_TRUE:
        return ON;
    case JSON_STRING:
        return json_string_length(value) ? TEXT : TEXT | EMPTY;
    case JSON_ARRAY:
        return json_array_size(value) ? LIST : LIST | EMPTY;
    case JSON_OBJECT:
        return json_object_size(value) ? OBJECT : OBJECT | EMPTY;
    default:
        return NUMBER;
    }
}

static bool is_word(const char *words, const char *text)
{
    for (const char *at = words; at && *at;) {
        bool any_case = *at == '~';
        at += any_case;
        size_t n = strcspn(at, "|");
        if (n == strlen(text) && !(any_case ? strncasecmp(at, text, n) : strncmp(at, text, n)))
            return true;
        at += n + (at[n] == '|');
    }
    return false;
}

static bool is_allowed(const member *m, const json_t *value)
{
    return (m->kinds & kinds_of(value)) ||
           (json_is_string(value) && is_word(m->words, json_string_value(value)));
}

static const member *find(const char *name)
{
    for (size_t i = 0; i < AX_COUNT(members); i++)
        if (!strcmp(members[i].name, name))
            return &members[i];
    return &unknown;
}

static ax_status refuse(const member *m, const char *name, const json_t *value, ax_buf *refused)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    AX_CHECK(text, AX_ERR_MEMORY, "not enough memory for the text of an error message");
    ax_status status =
        ax_buf_printf(refused, "\n  %.100s: %.60s%s: %s", name, text, strlen(text) > 60 ? "…" : "", m->what);
    free(text);
    return status;
}

ax_status ax_adapter_check_members(const json_t *json, ax_buf *refused)
{
    const char *name;
    json_t *value;
    if (!json_object_get(json, "peft_type"))
        AX_TRY(ax_buf_printf(refused, "\n  peft_type is missing: only \"LORA\" is implemented"));
    json_object_foreach((json_t *)json, name, value)
    {
        const member *m = find(name);
        if (!is_allowed(m, value))
            AX_TRY(refuse(m, name, value, refused));
    }
    return AX_OK;
}
