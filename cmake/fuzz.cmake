# AXONN_FUZZ: whether the harnesses of tests/fuzz are built. They need clang's libFuzzer and the address sanitizer.
# The rooms that read files are then compiled with coverage counters, by which libFuzzer finds new paths through them.
set(AXONN_FUZZ FALSE)
if(AXONN_TESTS AND CMAKE_C_COMPILER_ID STREQUAL "Clang" AND AXONN_SANITIZE MATCHES "address")
  include(CheckCSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer)
  check_c_source_compiles("int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n);
    int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return n && d[0] == 300; }" AXONN_HAVE_LIBFUZZER)
  unset(CMAKE_REQUIRED_FLAGS)
  set(AXONN_FUZZ ${AXONN_HAVE_LIBFUZZER})
  if(NOT AXONN_FUZZ)
    message(STATUS "fuzzing: off, ${CMAKE_C_COMPILER} has no libFuzzer (package libclang-rt-14-dev)")
  endif()
endif()
if(AXONN_FUZZ)
  file(GLOB READER_SOURCES CONFIGURE_DEPENDS src/base/*.c src/ckpt/*.c src/data/*.c src/token/*.c src/token/jinja/*.c src/config/*.c
    src/infer/adapter.c src/infer/pretrained.c src/train/state.c src/grid/*.c src/model/*.c src/tensor/layout.c src/trace/*.c)
  set(READER_OPTIONS -fsanitize=fuzzer-no-link)
  # scripts/fuzz-coverage.sh: which lines of these files the harnesses run.
  option(AXONN_FUZZ_COVERAGE "count the lines of the readers that fuzzing runs" OFF)
  if(AXONN_FUZZ_COVERAGE)
    list(APPEND READER_OPTIONS -fprofile-instr-generate -fcoverage-mapping)
    add_link_options(-fprofile-instr-generate)
  endif()
  set_source_files_properties(${READER_SOURCES} PROPERTIES COMPILE_OPTIONS "${READER_OPTIONS}")
endif()
