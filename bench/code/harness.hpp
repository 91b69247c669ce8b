// What a problem's driver and reference share with harness.cpp: arrays of the input and of the result.
#ifndef HARNESS_HPP
#define HARNESS_HPP

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

// Reads arrays in the order in which they were written. Data that is missing or of another type ends the
// program.
class Input {
  public:
    explicit Input(const char *path);
    std::vector<double> doubles();
    std::vector<int> ints();
    double number() { return doubles().at(0); }
    int integer() { return ints().at(0); }

  private:
    template <class T> std::vector<T> next(char type);
    std::FILE *file;
};

class Output {
  public:
    explicit Output(const char *path);
    ~Output();
    // `tolerance`: the largest difference that counts as rounding; only a reference's counts.
    void put(const std::vector<double> &x, double tolerance = 0);
    void put(const std::vector<int> &x);
    void put(double x, double tolerance = 0) { put(std::vector<double>{x}, tolerance); }
    void put(int x) { put(std::vector<int>{x}); }

  private:
    void write(char type, const void *data, std::size_t count, std::size_t size, double tolerance);
    std::FILE *file;
};

// Pseudo-random numbers, the same on all machines.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state(seed * 0x9E3779B97F4A7C15u + 1) {}
    double uniform(double from, double to) { return from + (to - from) * (double)(word() >> 11) * 0x1p-53; }
    int below(int n) { return (int)(word() % (std::uint64_t)n); }
    std::vector<double> vector(std::size_t n, double from, double to)
    {
        std::vector<double> x(n);
        for (double &each : x)
            each = uniform(from, to);
        return x;
    }

  private:
    std::uint64_t word()
    {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }
    std::uint64_t state;
};

// driver.cpp of a problem: calls the sample's function on one case. Every rank calls it with the same input;
// the result counts on rank 0.
void drive(Input &in, Output &out);

// reference.cpp of a problem: makes the input of a case of about `size` elements, and solves it.
void make(Random &random, int size, Output &in);
void solve(Input &in, Output &out);

#endif
