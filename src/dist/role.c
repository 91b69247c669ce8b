/* Which axes split a dim, by what the dim is to the model: the strategy, as a table. */
#include "axonn/dist.h"

ax_layout ax_layout_of_roles(const ax_role *roles, int ndim)
{
    /* The hidden width on x and the residual width on y: what one layer of a pair sums over, the next one
     * keeps, so consecutive layers need no redistribution (2305.13525, section 3). The vocabulary is
     * whole on each rank: the head's logits are partial along y, and summed. */
    static const ax_axes axes_of[AX_ROLE_COUNT] = {
        [AX_ROLE_BATCH] = {.n = 2, .a = {AX_DATA, AX_Z}},
        [AX_ROLE_MODEL] = {.n = 1, .a = {AX_Y}},
        [AX_ROLE_HIDDEN] = {.n = 1, .a = {AX_X}},
    };
    ax_layout layout = {0};
    for (int d = 0; d < ndim; d++)
        layout.dim[d] = axes_of[roles[d]];
    return layout;
}
