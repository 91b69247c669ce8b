/* Dynamic loss scaling for fp16. */
#include "axonn/optim.h"

#include <math.h>

enum { GOOD_STEPS = 2000 }; /* the scale doubles after this number of successive steps without overflow */

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
