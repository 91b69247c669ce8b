/* Compares measured GEMMs with the times that a description gives: bench_machine MEASURED DESCRIPTION prints
 * for each GEMM of the file MEASURED (axonn bench gemm --save) its seconds there and those that DESCRIPTION
 * says. */
#include "axonn/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ax_status compare(const ax_machine *measured, const ax_machine *other, double *error)
{
    int64_t n = 0;
    double all = 0, predicted = 0;
    for (int64_t i = 0; i < ax_machine_gemms(measured); i++) {
        char name[AX_MACHINE_GEMM_NAME];
        ax_gemm_args gemm;
        int64_t groups;
        double seconds, guess;
        ax_machine_gemm_at(measured, i, &gemm, &groups, &seconds);
        if (groups) /* their arguments are another struct */
            continue;
        AX_TRY(ax_machine_kernel_seconds(other, AX_K_gemm, &gemm, &guess));
        printf("%-40s %9.3f ms, predicted %9.3f (%+.1f %%)\n", ax_machine_gemm_name(&gemm, groups, name),
               seconds * 1e3, guess * 1e3, 100 * (guess / seconds - 1));
        error[n++] = fabs(guess / seconds - 1);
        all += seconds;
        predicted += guess;
    }
    AX_CHECK(n, AX_ERR_USAGE, "%s has no measured GEMM", measured->name);
    qsort(error, (size_t)n, sizeof *error, compare_numbers);
    printf("%lld GEMMs, error: median %.1f %%, nine of ten at most %.1f %%, largest %.1f %%, of the sum "
           "%+.1f %%\n",
           (long long)n, 100 * error[n / 2], 100 * error[9 * n / 10], 100 * error[n - 1],
           100 * (predicted / all - 1));
    return AX_OK;
}

int main(int argc, char **argv)
{
    ax_machine *measured = NULL, *other = NULL;
    double *error = NULL;
    if (argc != 3) {
        fprintf(stderr, "usage: bench_machine MEASURED DESCRIPTION\n");
        return AX_ERR_USAGE;
    }
    ax_status status = ax_machine_open(argv[1], &measured);
    if (status == AX_OK)
        status = ax_machine_open(argv[2], &other);
    if (status == AX_OK)
        status = ax_calloc((size_t)ax_machine_gemms(measured), sizeof *error, &error);
    if (status == AX_OK)
        status = compare(measured, other, error);
    if (status != AX_OK)
        fprintf(stderr, "bench_machine: %s\n", ax_error_message());
    free(error);
    ax_machine_close(&measured);
    ax_machine_close(&other);
    return (int)status;
}
