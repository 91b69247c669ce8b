#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    const int m = size, n = 1 + random.below(20), k = 1 + random.below(20);
    in.put(random.vector((std::size_t)(m * k), -1, 1));
    in.put(random.vector((std::size_t)(k * n), -1, 1));
    in.put(std::vector<int>{m, n, k});
}

void solve(Input &in, Output &out)
{
    const std::vector<double> A = in.doubles(), B = in.doubles();
    const std::vector<int> size = in.ints();
    const std::size_t m = (std::size_t)size[0], n = (std::size_t)size[1], k = (std::size_t)size[2];
    std::vector<double> C(m * n);
    for (std::size_t i = 0; i < m; i++)
        for (std::size_t j = 0; j < n; j++)
            for (std::size_t l = 0; l < k; l++)
                C[i * n + j] += A[i * k + l] * B[l * n + j];
    out.put(C, 4.5e-16 * (double)(k * k));
}
