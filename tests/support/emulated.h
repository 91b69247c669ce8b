/* Functions that the emulated GPU offers to tests (tests/cuda/emulator.cpp). */
#ifndef AXONN_TESTS_EMULATED_H
#define AXONN_TESTS_EMULATED_H

/* Returns how often the host waited for unfinished work, and how many graphs were launched. */
typedef long emulated_count_fn(void);
#define EMULATED_WAITS "ax_emulated_waits"
#define EMULATED_GRAPHS "ax_emulated_graphs"
/* Returns the bytes of pinned memory allocated so far, those already freed included. */
#define EMULATED_PINNED "ax_emulated_pinned"
/* Says how late copies on copy streams are from now on. 0: they run when they are enqueued. Above 0: they run
 * when somebody asks whether they are done for the time with this number. Below 0: by turns. */
typedef void emulated_delay_fn(long polls);
#define EMULATED_DELAY "ax_emulated_delay_copies"
/* Makes the next captures and graph launches fail. */
typedef void emulated_refuse_fn(long captures, long launches);
#define EMULATED_REFUSE "ax_emulated_refuse"

/* Returns the function `name`; NULL if device "cuda" was not asked for before, or is a real GPU. */
void *emulated_function(const char *name);

#endif
