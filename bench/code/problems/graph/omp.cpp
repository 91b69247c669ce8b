#include <cstddef>
#include <omp.h>
#include <vector>

/* An undirected graph has n vertices; edge[i * n + j] is 1 if an edge joins the vertices i and
   j, else 0. No vertex is joined to itself. Return the number of triangles: sets of three
   vertices of which each two are joined. Use OpenMP to compute in parallel.
   Example:
   input: edge = [0, 1, 1, 1, 0, 1, 1, 1, 0], n = 3
   output: 1 */
int count_triangles(const std::vector<int> &edge, int n) {
#ifndef WRONG
    int count = 0;
    #pragma omp parallel for reduction(+ : count) schedule(dynamic)
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            for (int k = j + 1; k < n; k++)
                count += edge[i * n + j] && edge[j * n + k] && edge[i * n + k];
    return count;
}
#else
    int count = 0;
    #pragma omp parallel for reduction(+ : count) schedule(dynamic)
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            for (int k = j + 1; k < n; k++)
                count += edge[i * n + j] && edge[j * n + k];
    return count;
}
#endif
