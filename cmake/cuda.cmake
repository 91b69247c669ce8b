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
    # cuDNN's header alone: its library is looked for when attention is run. Its graphs need 9.11's.
    find_path(AXONN_CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_PATH PATH_SUFFIXES include
      DOC "the folder of cudnn_graph.h, version 9.11 or later, or empty")
    set(AXONN_CUDNN_FOUND FALSE)
    if(AXONN_CUDNN_INCLUDE_DIR)
      file(STRINGS ${AXONN_CUDNN_INCLUDE_DIR}/cudnn_graph.h AXONN_CUDNN_KNOWS REGEX "CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC ")
      if(AXONN_CUDNN_KNOWS)
        set(AXONN_CUDNN_FOUND TRUE)
      endif()
    endif()
  elseif(AXONN_CUDA STREQUAL "on")
    message(FATAL_ERROR "AXONN_CUDA=on, but there is no nvcc; name it with -DAXONN_NVCC=/path/to/nvcc")
  endif()
endif()

function(axonn_add_cuda_plugin)
  file(GLOB sources CONFIGURE_DEPENDS src/dev/cuda/*.c src/dev/cuda/*.cu)
  if(NOT AXONN_CUDNN_FOUND)
    list(FILTER sources EXCLUDE REGEX "/cudnn[^/]*\\.c$")
  endif()
  add_library(axonn_cuda MODULE ${sources})
  if(AXONN_CUDNN_FOUND)
    target_compile_definitions(axonn_cuda PRIVATE AXONN_HAVE_CUDNN)
    target_include_directories(axonn_cuda SYSTEM PRIVATE ${AXONN_CUDNN_INCLUDE_DIR})
  endif()
  set_target_properties(axonn_cuda PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Shared
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} BUILD_RPATH "${CUDAToolkit_LIBRARY_DIR}" INSTALL_RPATH "$ORIGIN;${CUDAToolkit_LIBRARY_DIR}")
  target_include_directories(axonn_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
  # The commit is defined for one file, so that a new commit does not compile all of them again.
  set_source_files_properties(src/dev/cuda/device.c PROPERTIES COMPILE_DEFINITIONS
    "AXONN_COMMIT=\"${AXONN_COMMIT}\";AXONN_INTERFACE=\"${AXONN_INTERFACE}\"")
  target_compile_options(axonn_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror>)
  target_link_libraries(axonn_cuda PRIVATE libaxonn CUDA::cudart CUDA::cublasLt ${CMAKE_DL_LIBS} m)
  # NCCL is loaded when ranks have GPUs of their own; to be built it needs the header alone.
  find_path(AXONN_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(AXONN_NCCL_INCLUDE)
    target_compile_definitions(axonn_cuda PRIVATE AXONN_HAVE_NCCL)
    target_include_directories(axonn_cuda PRIVATE ${AXONN_NCCL_INCLUDE})
  endif()
  install(TARGETS axonn_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()
