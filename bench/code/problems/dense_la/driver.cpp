#include "harness.hpp"

void multiply(const std::vector<double> &A, const std::vector<double> &B, std::vector<double> &C, int m, int n,
              int k);

void drive(Input &in, Output &out)
{
    const std::vector<double> A = in.doubles(), B = in.doubles();
    const std::vector<int> size = in.ints();
    std::vector<double> C((std::size_t)(size[0] * size[1]));
    multiply(A, B, C, size[0], size[1], size[2]);
    out.put(C);
}
