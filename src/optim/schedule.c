/* Learning-rate schedules. */
#include "axonn/optim.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {[AX_SCHEDULE_CONSTANT] = "constant",
                                    [AX_SCHEDULE_LINEAR] = "linear",
                                    [AX_SCHEDULE_COSINE] = "cosine",
                                    [AX_SCHEDULE_WSD] = "wsd"};

const char *ax_schedule_name(int index) { return index < (int)AX_COUNT(names) ? names[index] : NULL; }

ax_status ax_schedule_find(const char *name, ax_schedule_kind *out)
{
    for (size_t i = 0; i < AX_COUNT(names); i++)
        if (!strcmp(name, names[i])) {
            *out = (ax_schedule_kind)i;
            return AX_OK;
        }
    return ax_fail(AX_ERR_USAGE, "there is no schedule \"%s\"; choose constant, linear, cosine or wsd", name);
}

double ax_schedule_lr(const ax_schedule *s, int64_t step)
{
    if (step <= s->warmup)
        return s->lr * (double)step / (double)s->warmup;
    double span = s->lr - s->min_lr, rest = (double)(s->steps - s->warmup);
    double gone = rest > 0 ? fmin((double)(step - s->warmup) / rest, 1) : 1;
    switch (s->kind) {
    case AX_SCHEDULE_LINEAR:
        return s->lr - span * gone;
    case AX_SCHEDULE_COSINE:
        return s->min_lr + 0.5 * span * (1 + cos(3.141592653589793 * gone));
    case AX_SCHEDULE_WSD: {
        int64_t start = ax_max(s->steps - (int64_t)llround(s->decay * (double)s->steps), s->warmup);
        return step <= start ? s->lr
                             : s->lr - span * fmin((double)(step - start) / (double)(s->steps - start), 1);
    }
    case AX_SCHEDULE_CONSTANT:
        break;
    }
    return s->lr;
}
