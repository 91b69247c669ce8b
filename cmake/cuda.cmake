# The CUDA plugin, libaxonn_cuda.so: built where nvcc is found, beside the library that loads it. Its kernels are
# compiled for Hopper, and for anything from Ampere on by the driver.
set(AXONN_CUDA auto CACHE STRING "build the CUDA plugin: auto (if nvcc is found, without sanitizers), on, off")
set_property(CACHE AXONN_CUDA PROPERTY STRINGS auto on off)

set(AXONN_CUDA_FOUND FALSE)
if(AXONN_CUDA STREQUAL "on" OR (AXONN_CUDA STREQUAL "auto" AND NOT AXONN_SANITIZE))
  find_program(AXONN_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(AXONN_NVCC)
    set(CMAKE_CUDA_COMPILER ${AXONN_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90-real CACHE STRING "GPUs that kernels are compiled for")
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(AXONN_CUDA_FOUND TRUE)
  elseif(AXONN_CUDA STREQUAL "on")
    message(FATAL_ERROR "AXONN_CUDA=on, but there is no nvcc; name it with -DAXONN_NVCC=/path/to/nvcc")
  endif()
endif()

function(axonn_add_cuda_plugin)
  file(GLOB sources CONFIGURE_DEPENDS src/dev/cuda/*.c src/dev/cuda/*.cu)
  add_library(axonn_cuda MODULE ${sources})
  set_target_properties(axonn_cuda PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Shared
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} BUILD_RPATH "${CUDAToolkit_LIBRARY_DIR}" INSTALL_RPATH "$ORIGIN;${CUDAToolkit_LIBRARY_DIR}")
  target_include_directories(axonn_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(axonn_cuda PRIVATE "AXONN_COMMIT=\"${AXONN_COMMIT}\"")
  target_compile_options(axonn_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror>)
  target_link_libraries(axonn_cuda PRIVATE libaxonn CUDA::cudart CUDA::cublasLt ${CMAKE_DL_LIBS})
  # NCCL is loaded when ranks have GPUs of their own; to be built it needs the header alone.
  find_path(AXONN_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(AXONN_NCCL_INCLUDE)
    target_compile_definitions(axonn_cuda PRIVATE AXONN_HAVE_NCCL)
    target_include_directories(axonn_cuda PRIVATE ${AXONN_NCCL_INCLUDE})
  endif()
  install(TARGETS axonn_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()
