#!/usr/bin/env bash
# Builds axonn in several ways, runs the tests of each build, and the checks of the sources. The builds: release (gcc), dev
# (clang with address and undefined-behaviour sanitizers), tsan, one with MPICH, and one without optional dependencies.
# Installs missing packages on Debian 12.
#   scripts/test.sh [--long]         --long adds the tests with the label long, and the analyzer of clang-tidy goes deeper
# Every test program and every check counts as one. The last line is
# "N passed, N failed" or "N passed, N failed, N skipped"; the exit code is 0 if none failed.
set -uo pipefail
cd "$(dirname "$0")/.."

long=false
case "${1:-}" in
    "") ;;
    --long) long=true ;;
    *)
        echo "usage: test.sh [--long]" >&2
        exit 2
        ;;
esac

passed=0 failed=0 skipped=0
jobs=$(nproc)
logs=build/test-logs

# The tests for the thread sanitizer: those that run code on several threads. mpi.collectives_nodes sends messages as
# mpi.collectives_flat does, from the same communication thread.
threaded='^((comm|grid|parallel|nn)\.|tensor\.layout$|dev\.(pool|bind)$|mpi\.collectives_(2|nodes)$|ckpt\.checkpoint|trace\.events|data\.build|token\.tokenizer_train|train\.ranks)'

# With sanitizers these run among the campaigns only. Whole training steps on the emulated GPU, and its files of plans: dev.backend,
# dev.copy, dev.replay, dev.launches, engine.pipe, engine.offload and infer.generate run the plugin's code with sanitizers each
# time. Jobs of the program: engine.pipe, mpi.collectives_*, mpi.steps and mpi.bench_pipe run pipelines and their messages,
# mpi.bench_generate the start of a benchmark on ranks, cli.* and token.* what a quick start runs. Numbers that sanitizers do not
# change: bytes that are sent and held, the experts that are chosen, and losses over MPI; engine.equality, engine.parallel,
# engine.experts, nn.layers and mpi.steps run the same steps. Programs that differ from another test by an environment variable or
# by the number of ranks alone, where the others (mpi.shared_nodes, _4, _off, mpi.collectives_3, _file, _nodes) run the code.
# Examples that are compiled against an installed library: the same sources as examples.charlm and examples.mlp. Ways in which
# a job ends, of which the release build runs these and the dev build the others (`once`). ctest allows nine pairs of parentheses.
seldom='^(engine\.(cuda|links|links_absent|pipe_ahead|bytes|held|choices)|nn\.bytes|train\.plans|dev\.(cudnn|plans)'
seldom+='|mpi\.(pipe|bench_(step|gemm|save|pipe_replicas)|equality_2|collectives_(2|4|flat)|shared_(2|3|first_off|second_off)|example_.*'
seldom+='|ends_(stop|fail_all|kill|exit3|gpu_fail|message_deadlock|message_mismatch|message_fail))'
seldom+='|examples\.installed.*|scripts\.quickstart)$'

# Without sanitizers these run among the campaigns only, because the dev build runs them: they test what is written, refused,
# or waited for, in code that no instruction set or number format changes. Other tests run that code in the release
# build, too: docs.howto, scripts.quickstart and mpi.cli the verbs, tokenizers and files of data; train.ranks and mpi.signals
# the ends and beginnings of runs; mpi.ends_fail, _leave, _deadlock and those of `seldom` the ends of jobs.
once='^(cli\.(adapters|generate|job|plan|text)|token\.(chat|chat_own|chat_records|tokenizer|tokenizer_classes|tokenizer_files)'
once+='|data\.(corpus|goldfish|mask|pack|sampler|shards|source)|train\.stop'
once+='|mpi\.ends_(late|exit0|gpu_stop|group_(late|stop)|message_(late|leave)))$'

export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=second_deadlock_stack=1
export CTEST_OUTPUT_ON_FAILURE=1

# say NAME RESULT START: prints a line of progress: the time since START, and the processor time since the last line, which
# a busy machine does not change much.
used=0
say() {
    local stat now
    read -ra stat </proc/$$/stat
    now=$(((stat[15] + stat[16]) / $(getconf CLK_TCK))) # of children that have ended
    printf '%-28s %-24s %4d s, processors %5d s\n' "$1" "$2" "$((SECONDS - $3))" "$((now - used))"
    used=$now
}

# show LOG: prints the part of a log that says what went wrong: of each test that failed the last lines that it printed.
show() {
    {
        awk '/^ *[0-9]+\/[0-9]+ Test +#|^The following tests/ {
                 for (i = n > 20 ? n - 20 : 0; i < n; i++) print last[i]
                 n = 0; failed = /\*\*\*/
             }
             failed && NF && !/^ *Start +[0-9]+:/ {last[n++] = $0}' "$1"
        grep -aE -m 12 'error|ERROR|Sanitizer|not found' "$1"
        echo ...
        sed -n '/The following tests FAILED/,/^Errors/p' "$1" | grep . || tail -n 8 "$1"
    } | cut -c1-200 | sed 's/^/    /'
    echo "    whole log: $1"
}

# step NAME COMMAND…: runs a command silently and counts it as one check.
step() {
    local name=$1 start=$SECONDS log
    shift
    log=$logs/${name// /-}.log
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        say "$name" ok "$start"
    else
        failed=$((failed + 1))
        say "$name" FAILED "$start"
        show "$log"
        return 1
    fi
}

real() { readlink -f "$(command -v "$1")"; }

# The builds release, bare and mpich have most objects in common. ccache compiles each object once, if all builds name the
# compiler alike.
export CCACHE_DIR=$PWD/build/ccache
shared=()

# configure PRESET COMPILER [CMAKE-OPTION…]: configures. Deletes the build directory first if it was made with another
# compiler.
configure() {
    local preset=$1 compiler=$2 dir=build had how=()
    shift 2
    [ "$preset" = release ] || dir=build-$preset
    had=$(sed -n 's/^CMAKE_C_COMPILER:[^=]*=//p' "$dir/CMakeCache.txt" 2>/dev/null)
    if [ -z "$had" ] || [ "$(real "$had")" != "$(real "$compiler")" ]; then
        how=(--fresh -G Ninja "-DCMAKE_C_COMPILER=$compiler")
    fi
    cmake --preset "$preset" "${how[@]}" "$@"
}

# The plugin is compiled for Hopper; check-kernels.sh keeps and checks the machine code. The PTX for other GPUs, of the same
# sources (none asks for the architecture), is made with --long and where there is a GPU.
gpu=90-real
if $long || [ -e /dev/nvidiactl ]; then
    gpu='80-virtual;90-real'
fi

# gcc takes minutes to optimize the CPU kernels of all instruction sets. Those that this machine does not prefer are tested
# without forced inlining; with --long all are optimized.
isa=-DAXONN_ISA=here
! $long || isa=-DAXONN_ISA=all

build_release() {
    configure release gcc "${shared[@]}" "$isa" "-DCMAKE_CUDA_ARCHITECTURES=$gpu" \
        "-DCMAKE_CUDA_COMPILER_LAUNCHER=$PWD/scripts/check-kernels.sh;--keep" && cmake --build build -j "$jobs"
}
sanitized=()
if command -v ld.lld >/dev/null; then # links a sanitized program in half the time
    sanitized=(-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld)
fi

build_dev() { configure dev clang "${sanitized[@]}" && cmake --build build-dev -j "$jobs"; }

# Builds the tests that run under the thread sanitizer: test ROOM.NAME is the program test_ROOM_NAME. A program that is
# not built fails its test.
build_tsan() {
    local programs
    configure tsan clang "${sanitized[@]}" &&
        programs=$(cmake --build build-tsan --target help | grep -oE '\btest_[a-z]+_[a-z0-9_]+' | LC_ALL=C sort -u |
            sed 's/^test_//; s/_/./' | grep -E "$threaded" | sed 's/\./_/; s/^/test_/') &&
        # shellcheck disable=SC2086  # one word per program
        cmake --build build-tsan -j "$jobs" --target mpi_collectives $programs
}

# Builds the parts that use MPI, with MPICH.
build_mpich() {
    cmake -S . -B build-mpich -G Ninja -DAXONN_MPI=mpicc.mpich -DAXONN_TESTS=ON -DCMAKE_C_COMPILER=gcc "${shared[@]}" "$isa" &&
        cmake --build build-mpich -j "$jobs" --target mpi_tests
}

# Builds without the optional dependencies: MPI, CUDA, tests.
build_bare() {
    cmake -S . -B build-bare -G Ninja -DAXONN_MPI=off -DAXONN_CUDA=off -DAXONN_TESTS=off -DCMAKE_C_COMPILER=gcc "${shared[@]}" \
        "$isa" && cmake --build build-bare -j "$jobs" && ./build-bare/axonn info >/dev/null
}

# run_tests NAME DIR CTEST-OPTION…: runs ctest and adds its numbers of tests to the totals.
run_tests() {
    local name=$1 dir=$2 start=$SECONDS log result tests bad left absent
    shift 2
    log=$PWD/$logs/${name// /-}.log
    result=$PWD/$logs/${name// /-}.xml
    rm -f "$result"
    # Twice as many tests as there are cores: many mostly wait, for a disk, a launcher or one another.
    ctest --test-dir "$dir" -j "$((2 * jobs))" --no-tests=ignore --output-junit "$result" "$@" >"$log" 2>&1
    count() { sed -n "s/.*[[:space:]]$1=\"\([0-9]*\)\".*/\1/p" "$result" 2>/dev/null | head -1; }
    tests=$(count tests) bad=$(count failures) left=$(($(count skipped) + $(count disabled)))
    # ctest reports a test without its program as skipped.
    absent=$(grep -c 'skipped message="Unable to find executable"' "$result" 2>/dev/null)
    bad=$((bad + absent)) left=$((left - absent))
    if [ -z "$tests" ] && grep -q 'No tests were found' "$log"; then
        tests=0 bad=0
    elif [ -z "$tests" ]; then
        tests=1 bad=1
    fi
    passed=$((passed + tests - bad - left)) failed=$((failed + bad)) skipped=$((skipped + left))
    if [ "$bad" -eq 0 ]; then
        say "$name" "$((tests - left)) passed" "$start"
    else
        say "$name" "$bad of $tests FAILED" "$start"
        show "$log"
    fi
}

./scripts/install-deps.sh --test || {
    echo "0 passed, 1 failed"
    exit 1
}
mkdir -p "$logs"
if command -v ccache >/dev/null; then
    shared=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
fi

step "check rooms" scripts/check-rooms.sh
step "check format" scripts/check-format.sh
step "check headers" scripts/check-headers.sh
step "check unused" scripts/check-unused.sh

step "build release" build_release && {
    step "check kernels" env BUILD=build scripts/check-kernels.sh
    run_tests "test release" build -LE 'long|bench' -E "$($long || echo "$once")"
    run_tests "test ratios" build -L bench
    if $long; then
        run_tests "test campaigns" build -L long
    fi
}
step "build bare" build_bare
mpich='^mpi\..*_2$|^mpi\.(cli|signals|ends_fail|ends_kill)$'
! $long || mpich+='|^mpi\.all_signals$'
step "build mpich" build_mpich && run_tests "test mpich" build-mpich -R "$mpich"
step "build dev" build_dev && {
    run_tests "test dev" build-dev -LE long -E "$seldom"
    if $long; then
        run_tests "test dev seldom" build-dev -R "$seldom"
        run_tests "test dev campaigns" build-dev -L 'sampled|fuzz'
    fi
}
step "build tsan" build_tsan && {
    run_tests "test tsan" build-tsan -LE long -R "$threaded" -E "$seldom"
    if $long; then
        run_tests "test tsan seldom" build-tsan -R '^(mpi\.collectives_2|nn\.bytes)$'
    fi
}
if $long; then
    export NODES=75000 # the analyzer looks for longer paths
fi
step "check tidy" scripts/check-tidy.sh

total="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || total="$total, $skipped skipped"
echo "$total"
[ "$failed" -eq 0 ]
