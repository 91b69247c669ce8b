#include "harness.hpp"

int first_above(const std::vector<double> &x, double limit);

void drive(Input &in, Output &out)
{
    const std::vector<double> x = in.doubles();
    for (int i = 0; i < 4; i++)
        out.put(first_above(x, in.number()));
}
