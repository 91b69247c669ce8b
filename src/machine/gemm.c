/* Finds the time of a GEMM from measured ones.
 *
 * A measured GEMM of the same shape and kind has its own time. Else three things decide. (1) A fit over all
 * points of the dtype, time = c0·operations + c1 + c2·elements of a and b + c3·elements of c with no
 * coefficient below 0, times the median by which the points of the same kind are slower than it. (2) Each of
 * these points bounds the time from below: a GEMM that is smaller by a factor in m, n or k takes at least
 * this part of the point's time. (3) And from above: one that is larger by a factor takes at most this
 * multiple. The result is the fit, moved to the nearer bound if it is beyond one. All three rise with m, n
 * and k, and so does the result; at a point both bounds are its time. If points contradict one another (a
 * larger GEMM was faster than a smaller one), bounds may cross: then their geometric mean is taken. */
#include "private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the fit --------------------------------------------------------------------------------------- */

static void terms_of(const ax_gemm_args *g, double out[MACHINE_TERMS])
{
    double m = (double)g->m, n = (double)g->n, k = (double)g->k;
    out[0] = 2 * m * n * k;
    out[1] = 1;
    out[2] = m * k + k * n;
    out[3] = m * n;
}

static double fitted(const machine_fit *fit, const ax_gemm_args *g)
{
    double term[MACHINE_TERMS], sum = 0;
    terms_of(g, term);
    for (int i = 0; i < MACHINE_TERMS; i++)
        sum += fit->c[i] * term[i];
    return sum;
}

/* Solves a x = b of n unknowns by elimination; false if the matrix is nearly singular. */
static bool solve(int n, double a[MACHINE_TERMS][MACHINE_TERMS], double b[MACHINE_TERMS])
{
    for (int i = 0; i < n; i++) {
        int pivot = i;
        for (int r = i + 1; r < n; r++)
            pivot = fabs(a[r][i]) > fabs(a[pivot][i]) ? r : pivot;
        if (fabs(a[pivot][i]) < 1e-10)
            return false;
        for (int c = 0; c < n; c++) {
            double swapped = a[i][c];
            a[i][c] = a[pivot][c];
            a[pivot][c] = swapped;
        }
        double swapped = b[i];
        b[i] = b[pivot];
        b[pivot] = swapped;
        for (int r = 0; r < n; r++) {
            double factor = r == i ? 0 : a[r][i] / a[i][i];
            for (int c = i; c < n; c++)
                a[r][c] -= factor * a[i][c];
            b[r] -= factor * b[i];
        }
    }
    for (int i = 0; i < n; i++)
        b[i] /= a[i][i];
    return true;
}

/* Fits the terms of the set `used` to the points of a dtype, by least squares of the relative error. Sets
 * *score to how bad the fit is: its error, and a price for each term. Returns false if a coefficient is not
 * above 0. */
static bool fit_terms(const ax_machine_tables *t, ax_dtype dtype, unsigned used, machine_fit *out,
                      double *score)
{
    double a[MACHINE_TERMS][MACHINE_TERMS] = {{0}}, b[MACHINE_TERMS] = {0}, scale[MACHINE_TERMS] = {0},
           error = 0;
    int which[MACHINE_TERMS], n = 0, points = 0;
    for (int i = 0; i < MACHINE_TERMS; i++)
        if (used >> i & 1)
            which[n++] = i;
    for (int pass = 0; pass < 2; pass++)
        for (size_t p = 0; p < t->points; p++) {
            double term[MACHINE_TERMS];
            if (t->point[p].args.dtype != dtype)
                continue;
            terms_of(&t->point[p].args, term);
            for (int i = 0; i < n && !pass; i++)
                scale[i] = fmax(scale[i], term[which[i]] / t->point[p].seconds);
            for (int i = 0; i < n && pass; i++) {
                double x = term[which[i]] / t->point[p].seconds / scale[i];
                b[i] += x;
                for (int j = 0; j < n; j++)
                    a[i][j] += x * term[which[j]] / t->point[p].seconds / scale[j];
            }
            points += !pass;
        }
    if (!points || !solve(n, a, b))
        return false;
    *out = (machine_fit){{0}};
    for (int i = 0; i < n; i++) {
        out->c[which[i]] = b[i] / scale[i];
        if (b[i] <= 0)
            return false;
    }
    for (size_t p = 0; p < t->points; p++)
        if (t->point[p].args.dtype == dtype)
            error += pow(fitted(out, &t->point[p].args) / t->point[p].seconds - 1, 2);
    *score = points * log(error / points + 1e-6) + n * log(points);
    return true;
}

void machine_fit_points(ax_machine_tables *t)
{
    for (int dtype = 0; dtype < AX_DTYPE_COUNT; dtype++) {
        double best = INFINITY, score;
        machine_fit fit;
        for (unsigned used = 1; used < 1u << MACHINE_TERMS;
             used += 2) /* term 0, the operations, is in each */
            if (fit_terms(t, (ax_dtype)dtype, used, &fit, &score) && score < best) {
                best = score;
                t->fit[dtype] = fit;
            }
    }
}

/* ---- the kind of a GEMM ---------------------------------------------------------------------------- */

static bool same_layout(const machine_point *p, const ax_gemm_args *g)
{
    return p->args.dtype == g->dtype && p->args.trans_a == g->trans_a && p->args.trans_b == g->trans_b;
}

static bool same_kind(const machine_point *p, const ax_gemm_args *g, int64_t groups)
{
    bool same = same_layout(p, g) && p->args.c_dtype == g->c_dtype && p->groups == groups;
    for (int i = 0; i < MACHINE_ADDITIONS && same; i++)
        same = machine_additions[i].has(&p->args) == machine_additions[i].has(g);
    return same;
}

/* How alike a point and a GEMM are: 3 if they are of one kind, 2 of one layout, 1 of one dtype, else 0. */
static int likeness(const machine_point *p, const ax_gemm_args *g, int64_t groups)
{
    return same_kind(p, g, groups) ? 3 : same_layout(p, g) ? 2 : p->args.dtype == g->dtype;
}

/* ---- interpolation --------------------------------------------------------------------------------- */

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median of point/fit over the points that are as alike as this, of up to MOST of them. */
static double slower_than_fit(const ax_machine_tables *t, const ax_gemm_args *g, int64_t groups, int like)
{
    enum { MOST = 256 };
    double ratio[MOST];
    int n = 0;
    for (size_t p = 0; p < t->points && n < MOST; p++)
        if (likeness(&t->point[p], g, groups) >= like)
            ratio[n++] = t->point[p].seconds / fitted(&t->fit[g->dtype], &t->point[p].args);
    qsort(ratio, (size_t)n, sizeof *ratio, compare_numbers);
    return n % 2 ? ratio[n / 2] : sqrt(ratio[n / 2 - 1] * ratio[n / 2]);
}

/* Narrows the bounds by a point. */
static void bound(const machine_point *p, const ax_gemm_args *g, double *low, double *high)
{
    const double ratio[] = {(double)g->m / (double)p->args.m, (double)g->n / (double)p->args.n,
                            (double)g->k / (double)p->args.k};
    double less = p->seconds, more = p->seconds;
    for (int i = 0; i < 3; i++) {
        less *= fmin(1, ratio[i]);
        more *= fmax(1, ratio[i]);
    }
    *low = fmax(*low, less);
    *high = fmin(*high, more);
}

bool machine_gemm_seconds(const ax_machine_tables *t, const ax_gemm_args *g, int64_t groups, double *seconds)
{
    double low = 0, high = INFINITY;
    int like = 0;
    for (size_t p = 0; p < t->points; p++) {
        const machine_point *point = &t->point[p];
        const int mine = likeness(point, g, groups);
        if (mine == 3 && point->args.m == g->m && point->args.n == g->n && point->args.k == g->k) {
            *seconds = point->seconds;
            return true;
        }
        if (mine > like) {
            like = mine;
            low = 0;
            high = INFINITY;
        }
        if (mine && mine == like)
            bound(point, g, &low, &high);
    }
    if (!like)
        return false;
    double guess = fitted(&t->fit[g->dtype], g) * slower_than_fit(t, g, groups, like);
    *seconds = low > high ? sqrt(low * high) : fmin(fmax(guess, low), high);
    return true;
}
