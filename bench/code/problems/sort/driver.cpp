#include "harness.hpp"

void sort_by_magnitude(std::vector<double> &x);

void drive(Input &in, Output &out)
{
    std::vector<double> x = in.doubles();
    sort_by_magnitude(x);
    out.put(x);
}
