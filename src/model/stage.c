/* The pipeline stages of a model: where they begin, which layers they run, and which parameters they have.
 *
 * The units of a model are the embedding, each block, and the final norm with the head. A chunk of a
 * stage has one or more adjacent units. Every rank builds all layers, so that a parameter has the same index
 * on all ranks and the same place in checkpoint files. */
#include "model/family.h"

#include "axonn/pipe.h"

#include <stdlib.h>

/* ---- where stages begin -------------------------------------------------------------------------- */

/* Returns the number of parts of the model: the chunks of all stages. */
static int parts_of(const ax_model *m) { return m->stages * m->chunks; }

static ax_status take_cut(ax_model *m, const int64_t *cut)
{
    for (int p = 1; p < parts_of(m); p++) {
        m->cut[p] = cut[p - 1];
        AX_CHECK(m->cut[p] >= (p > 1) && m->cut[p] <= m->config.layers &&
                     (p == 1 || m->cut[p] > m->cut[p - 1]),
                 AX_ERR_USAGE,
                 "pipe.cut: part %d (a stage, or a chunk of a stage, counted from 0) cannot begin with block "
                 "%lld: it "
                 "must begin after part %d does, and with block %lld at most, which leaves it only the head",
                 p, (long long)m->cut[p], p - 1, (long long)m->config.layers);
    }
    m->cut[parts_of(m)] = m->config.layers;
    return AX_OK;
}

/* Makes each unit a part of its own. */
static void cut_each(ax_model *m)
{
    for (int p = 1; p <= parts_of(m); p++)
        m->cut[p] = ax_min(p - 1, m->config.layers);
}

ax_status ax_stage_plan(ax_model *m, const ax_model_use *use)
{
    const ax_grid *grid = m->ctx->grid;
    const int64_t *cut = m->ctx->parallel.pipe.cut;
    m->stages = ax_grid_axis_size(grid, AX_PIPE);
    m->stage = ax_grid_coord(grid, ax_grid_rank(grid), AX_PIPE);
    m->chunks = use->chunk_each ? (int)m->config.layers + 2 : ax_model_stage(m, 0, 1).chunks;
    AX_CHECK(parts_of(m) <= m->config.layers + 2, AX_ERR_USAGE,
             "%d parts of the pipeline (stages times chunks) are too many for a model of %lld blocks: each "
             "needs the embedding, a block or the head, so at most %lld are possible",
             parts_of(m), (long long)m->config.layers, (long long)m->config.layers + 2);
    AX_TRY(ax_calloc((size_t)m->chunks, sizeof *m->chunk, &m->chunk));
    AX_TRY(ax_calloc((size_t)parts_of(m) + 1, sizeof *m->cut, &m->cut));
    if (cut)
        return take_cut(m, cut);
    if (use->chunk_each)
        cut_each(m);
    else
        ax_pipe_cut(m->stages, m->chunks, m->config.layers, use->costs, m->cut);
    return AX_OK;
}

/* ---- which layers -------------------------------------------------------------------------------- */

int64_t ax_stage_segment(const ax_model *m, int64_t block, int64_t length)
{
    int64_t end = ax_min(block + length, m->config.layers);
    for (int p = 1; p < parts_of(m); p++)
        if (m->cut[p] > block)
            end = ax_min(end, m->cut[p]);
    return end;
}

void ax_stage_note(ax_model *m, int64_t block)
{
    for (int c = 0; c < m->chunks; c++) {
        int part = c * m->stages + m->stage;
        if (part > 0 && m->cut[part] == block)
            m->chunk[c].first = m->body->children;
        if (part < parts_of(m) - 1 && m->cut[part + 1] == block)
            m->chunk[c].end = m->body->children;
    }
}

bool ax_model_is_last(const ax_model *model) { return model->stage == model->stages - 1; }
bool ax_model_begins(const ax_model *model, int chunk) { return chunk == 0 && model->stage == 0; }
bool ax_model_ends(const ax_model *model, int chunk)
{
    return chunk == model->chunks - 1 && ax_model_is_last(model);
}

ax_pipe_stage ax_model_stage(const ax_model *model, int stage, int64_t micro_batches)
{
    return ax_pipe_stage_of(&model->ctx->parallel.pipe, model->stages, stage, micro_batches);
}

/* ---- which parameters ---------------------------------------------------------------------------- */

static void place_all(ax_layer *layer, ax_param_place place)
{
    for (int i = 0; i < AX_LAYER_PARAMS; i++)
        if (layer->param[i] && !layer->borrows[i])
            layer->param[i]->place = place;
    for (int i = 0; i < layer->children; i++)
        place_all(layer->child[i], place);
}

/* Sets ax_param.place of the weights that the head shares with the embedding (tied weights): the first stage
 * owns these weights, and the last stage has a copy. */
static void place_tied(ax_model *m)
{
    for (int i = 0; i < AX_LAYER_PARAMS; i++) {
        ax_param *p = m->head->borrows[i] ? m->head->param[i] : NULL;
        if (p && m->stage == 0)
            p->place = AX_PARAM_LENT;
        else if (p && ax_model_is_last(m))
            p->place = AX_PARAM_COPY;
    }
}

static bool runs(const ax_model *m, int child)
{
    bool found = false;
    for (int c = 0; c < m->chunks; c++)
        found |= child >= m->chunk[c].first && child < m->chunk[c].end;
    return found;
}

void ax_stage_place(ax_model *m)
{
    if (ax_model_is_last(m))
        m->chunk[m->chunks - 1].end = m->body->children;
    if (m->stages == 1)
        return;
    for (int i = 0; i < m->body->children; i++)
        if (!runs(m, i))
            place_all(m->body->child[i], AX_PARAM_AWAY);
    if (!ax_model_is_last(m))
        place_all(m->head, AX_PARAM_AWAY);
    place_tied(m);
}
