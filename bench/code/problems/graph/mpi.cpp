#include <cstddef>
#include <mpi.h>
#include <vector>

/* An undirected graph has n vertices; edge[i * n + j] is 1 if an edge joins the vertices i and
   j, else 0. No vertex is joined to itself. Return the number of triangles: sets of three
   vertices of which each two are joined. Use MPI to compute in parallel. MPI is initialized.
   Every rank has the whole input; the result must be returned on rank 0.
   Example:
   input: edge = [0, 1, 1, 1, 0, 1, 1, 1, 0], n = 3
   output: 1 */
int count_triangles(const std::vector<int> &edge, int n) {
#ifndef WRONG
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    int own = 0, count = 0;
    for (int i = rank; i < n; i += ranks)
        for (int j = i + 1; j < n; j++)
            for (int k = j + 1; k < n; k++)
                own += edge[i * n + j] && edge[j * n + k] && edge[i * n + k];
    MPI_Reduce(&own, &count, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    return count;
}
#else
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    int own = 0, count = 0;
    for (int i = rank; i < n; i += ranks)
        for (int j = 0; j < n; j++)
            for (int k = 0; k < n; k++)
                own += edge[i * n + j] && edge[j * n + k] && edge[i * n + k];
    MPI_Reduce(&own, &count, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    return count / 3;
}
#endif
