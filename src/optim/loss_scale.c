/* Dynamic loss scaling. */
#include "axonn/optim.h"

#include <math.h>

enum { GOOD_STEPS = 2000 }; /* good steps in a row after which the scale doubles */

ax_loss_scale ax_loss_scale_start(ax_dtype compute)
{
    return (ax_loss_scale){.scale = compute == AX_F16 ? 0x1p16 : 1};
}

void ax_loss_scale_update(ax_loss_scale *s, bool overflow)
{
    if (overflow) {
        s->scale = fmax(s->scale / 2, AX_LOSS_SCALE_LEAST);
        s->good_steps = 0;
        s->skipped_steps++;
    } else if (++s->good_steps >= GOOD_STEPS) {
        s->scale = fmin(s->scale * 2, AX_LOSS_SCALE_MOST);
        s->good_steps = 0;
    }
}
