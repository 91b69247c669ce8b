#include "harness.hpp"

int count_triangles(const std::vector<int> &edge, int n);

void drive(Input &in, Output &out)
{
    const std::vector<int> edge = in.ints();
    const int n = in.integer();
    out.put(count_triangles(edge, n));
}
