/* Chooses the length of rows (T, tokens of a training sequence) if the user gives none: as long as the
 * documents ask for, within limits. */
#include "source.h"

#include <stdio.h>

enum {
    UNIT = 64
}; /* T is a multiple of this number, where data and limits allow it: tiles of kernels are full */

ax_status ax_data_longest(const ax_data *data, int64_t enough, int64_t *longest)
{
    data_walk walk;
    *longest = 0;
    if (data->index_kind == INDEX_NONE || !data->info.tokens) {
        *longest = data->info.tokens;
        return AX_OK;
    }
    AX_TRY(data_walk_begin(&walk, data, 0));
    while (walk.first < walk.end && *longest < enough) {
        *longest = ax_max(*longest, walk.end - walk.first);
        AX_TRY(data_walk_next(&walk));
    }
    return AX_OK;
}

/* Returns the rule by which a length was chosen. `wanted`: the length before limits; `all`: tokens that the
 * largest source has for inputs. */
static ax_row_length_rule rule_of(const ax_row_length *length, int64_t wanted, int64_t all)
{
    if (length->seq_len >= all)
        return AX_LENGTH_ALL;
    if (wanted >= length->positions && length->positions <= AX_ROW_MOST)
        return AX_LENGTH_POSITIONS;
    if (wanted > AX_ROW_MOST)
        return AX_LENGTH_MOST;
    return wanted > length->longest ? AX_LENGTH_STREAM : AX_LENGTH_LONGEST;
}

ax_status ax_data_choose_length(ax_data *const *sources, int n, const ax_row_shape *shape, int64_t positions,
                                ax_row_length *out)
{
    const int64_t most = ax_min(positions, AX_ROW_MOST);
    int64_t longest = 0, wanted = 0, all = 0;
    for (int i = 0; i < n; i++) {
        int64_t here;
        AX_TRY(ax_data_longest(sources[i], most + 2, &here));
        here = ax_max(here - 1, 0); /* inputs: the last token is a target only */
        longest = ax_max(longest, here);
        wanted = ax_max(wanted, ax_data_is_packed(sources[i], shape) ? here : ax_max(here, AX_ROW_STREAM));
        all = ax_max(all, sources[i]->info.tokens - 1);
    }
    const int64_t whole = ax_min(ax_round_up(ax_min(wanted, most), UNIT), most);
    *out =
        (ax_row_length){.seq_len = ax_max(ax_min(whole, all), 1), .positions = positions, .longest = longest};
    out->rule = rule_of(out, wanted, all);
    return AX_OK;
}

void ax_row_length_print(const ax_row_length *length, const char *option, char out[AX_ROW_LENGTH_TEXT])
{
    const size_t size = AX_ROW_LENGTH_TEXT;
    snprintf(out, size, "rows have %lld token%s, ", (long long)length->seq_len,
             length->seq_len == 1 ? "" : "s");
    switch (length->rule) {
    case AX_LENGTH_LONGEST:
        ax_text_add(out, size, "enough for the longest document (%lld)", (long long)length->longest + 1);
        break;
    case AX_LENGTH_STREAM:
        ax_text_add(out, size, "the default for rows that cut documents");
        break;
    case AX_LENGTH_ALL:
        ax_text_add(out, size, "enough for all of the data");
        break;
    case AX_LENGTH_MOST:
        ax_text_add(out, size, "the default for long documents, which are cut");
        break;
    default:
        ax_text_add(out, size, "as many as the model has positions");
        break;
    }
    if (length->rule != AX_LENGTH_POSITIONS)
        ax_text_add(out, size, "; %s sets another length, up to the model's %lld positions", option,
                    (long long)length->positions);
}
