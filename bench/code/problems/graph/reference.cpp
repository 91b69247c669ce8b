#include "harness.hpp"

#include <algorithm>
#include <cmath>

void make(Random &random, int size, Output &in)
{
    const int n = std::min(size, 70);
    std::vector<int> edge((std::size_t)(n * n));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            edge[(std::size_t)(i * n + j)] = edge[(std::size_t)(j * n + i)] = random.below(3) > 0;
    in.put(edge);
    in.put(n);
}

void solve(Input &in, Output &out)
{
    const std::vector<int> edge = in.ints();
    const std::size_t n = (std::size_t)in.integer();
    int count = 0;
    for (std::size_t i = 0; i < n; i++)
        for (std::size_t j = 0; j < i; j++)
            for (std::size_t k = 0; k < j; k++)
                count += edge[i * n + j] && edge[j * n + k] && edge[i * n + k];
    out.put(count);
}
