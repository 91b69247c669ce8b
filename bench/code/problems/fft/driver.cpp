#include "harness.hpp"

void fourier(std::vector<std::complex<double>> &x);

void drive(Input &in, Output &out)
{
    const std::vector<double> re = in.doubles(), im = in.doubles();
    std::vector<std::complex<double>> x;
    for (std::size_t i = 0; i < re.size(); i++)
        x.emplace_back(re[i], im[i]);
    fourier(x);
    std::vector<double> parts;
    for (const std::complex<double> &each : x) {
        parts.push_back(each.real());
        parts.push_back(each.imag());
    }
    out.put(parts);
}
