#include "harness.hpp"

void distance_to_multiple(std::vector<double> &x, double step);

void drive(Input &in, Output &out)
{
    std::vector<double> x = in.doubles();
    distance_to_multiple(x, in.number());
    out.put(x);
}
