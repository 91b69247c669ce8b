// The main programs of the judge: of a sample (usage: a.out INPUT RESULT), with MPI if JUDGE_MPI is defined,
// and, if JUDGE_REFERENCE is defined, of a problem's reference (usage: a.out INPUT RESULT, which it makes).
//
// A file is a sequence of arrays. Each has a type (1 byte: d, i), the tolerance (a double), the number of
// elements (8 bytes) and the elements.
#include "harness.hpp"

#include <cstdlib>
#ifdef JUDGE_MPI
#include <mpi.h>
#endif

static std::FILE *open_file(const char *path, const char *mode)
{
    std::FILE *file = std::fopen(path, mode);
    if (!file) {
        std::perror(path);
        std::_Exit(3);
    }
    return file;
}

Input::Input(const char *path) : file(open_file(path, "rb")) {}

template <class T> std::vector<T> Input::next(char type)
{
    char is = 0;
    double tolerance = 0;
    std::uint64_t count = 0;
    if (std::fread(&is, 1, 1, file) != 1 || is != type ||
        std::fread(&tolerance, sizeof tolerance, 1, file) != 1 ||
        std::fread(&count, sizeof count, 1, file) != 1)
        std::_Exit(3);
    std::vector<T> x(count);
    if (count && std::fread(x.data(), sizeof(T), count, file) != count)
        std::_Exit(3);
    return x;
}

std::vector<double> Input::doubles() { return next<double>('d'); }
std::vector<int> Input::ints() { return next<int>('i'); }

Output::Output(const char *path) : file(open_file(path, "wb")) {}
Output::~Output() { std::fclose(file); }

void Output::write(char type, const void *data, std::size_t count, std::size_t size, double tolerance)
{
    const std::uint64_t n = count;
    std::fwrite(&type, 1, 1, file);
    std::fwrite(&tolerance, sizeof tolerance, 1, file);
    std::fwrite(&n, sizeof n, 1, file);
    std::fwrite(data, size, count, file);
}

void Output::put(const std::vector<double> &x, double tolerance)
{
    write('d', x.data(), x.size(), sizeof(double), tolerance);
}
void Output::put(const std::vector<int> &x) { write('i', x.data(), x.size(), sizeof(int), 0); }

// The sizes of the cases. Ranks and threads do not divide most of them.
static const int sizes[] = {1, 2, 3, 7, 16, 61, 128, 333};

#ifdef JUDGE_REFERENCE
int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    {
        Output in(argv[1]);
        Random random(2412);
        for (int size : sizes)
            make(random, size, in);
    }
    Input in(argv[1]);
    Output out(argv[2]);
    for (std::size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        solve(in, out);
}
#else
int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int rank = 0;
#ifdef JUDGE_MPI
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#endif
    {
        Input in(argv[1]);
        Output out(rank == 0 ? argv[2] : "/dev/null");
        for (std::size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            drive(in, out);
    }
#ifdef JUDGE_MPI
    MPI_Finalize();
#endif
}
#endif
