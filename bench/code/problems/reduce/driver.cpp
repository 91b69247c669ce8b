#include "harness.hpp"

double sum_of_positive(const std::vector<double> &x);

void drive(Input &in, Output &out)
{
    out.put(sum_of_positive(in.doubles()));
}
