# The CUDA backend and the NCCL communicator: a module of its own (twinspeed_cuda.so), so that everything else builds and
# runs without the toolkit. Compiling it needs no GPU. Sanitizer and fuzzing builds leave it out: nvcc and their
# instrumentation do not mix.
set(TWINSPEED_CUDA AUTO CACHE STRING "CUDA backend: AUTO, ON or OFF")
set(TWINSPEED_CUDA_ARCHITECTURES "80-real;90-real;100-real;80-virtual" CACHE STRING
    "CUDA architectures; one of them alone compiles faster")
set(TWS_HAVE_CUDA OFF)

if(TWINSPEED_CUDA STREQUAL "OFF" OR TWINSPEED_SANITIZE OR TWINSPEED_FUZZ)
  return()
endif()

# Before the language is enabled: without a GPU "native" would silently mean an old architecture.
set(CMAKE_CUDA_ARCHITECTURES "${TWINSPEED_CUDA_ARCHITECTURES}")
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(TWS_NVCC nvcc HINTS /usr/local/cuda/bin)
  mark_as_advanced(TWS_NVCC)
  if(TWS_NVCC)
    set(CMAKE_CUDA_COMPILER ${TWS_NVCC})
  endif()
endif()
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  find_package(CUDAToolkit)
  find_path(TWS_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(TWS_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  find_path(TWS_CUDNN_INCLUDE cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(TWS_CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR})
  mark_as_advanced(TWS_NCCL_INCLUDE TWS_NCCL_LIBRARY TWS_CUDNN_INCLUDE TWS_CUDNN_LIBRARY)
endif()

if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublasLt AND TARGET CUDA::cudart_static AND TWS_NCCL_INCLUDE AND TWS_NCCL_LIBRARY)
  file(GLOB TWS_CUDA_SOURCES CONFIGURE_DEPENDS real/cuda/*.c real/cuda/kernels/*.cu)
  add_library(twinspeed_cuda MODULE ${TWS_CUDA_SOURCES} real/operands.c)
  set_target_properties(twinspeed_cuda PROPERTIES PREFIX "" LINKER_LANGUAGE CXX C_VISIBILITY_PRESET hidden
                        CUDA_VISIBILITY_PRESET hidden CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Static
                        INSTALL_RPATH_USE_LINK_PATH ON)
  target_compile_options(twinspeed_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--threads=0>")
  if(TWINSPEED_WERROR)
    target_compile_options(twinspeed_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>")
  endif()
  target_include_directories(twinspeed_cuda SYSTEM PRIVATE ${TWS_NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(twinspeed_cuda PRIVATE twinspeed CUDA::cublasLt CUDA::cudart_static ${TWS_NCCL_LIBRARY})
  target_link_options(twinspeed_cuda PRIVATE -Wl,--exclude-libs,ALL)
  if(TWS_CUDNN_INCLUDE AND TWS_CUDNN_LIBRARY) # loaded at run time; attention has kernels of its own without it
    target_include_directories(twinspeed_cuda SYSTEM PRIVATE ${TWS_CUDNN_INCLUDE})
    target_compile_definitions(twinspeed_cuda PRIVATE TWS_HAVE_CUDNN=1 TWS_CUDNN_LIBRARY="${TWS_CUDNN_LIBRARY}")
  endif()
  set(TWS_HAVE_CUDA ON)
elseif(TWINSPEED_CUDA STREQUAL "ON")
  message(FATAL_ERROR "TWINSPEED_CUDA=ON but nvcc, cuBLASLt, the static CUDA runtime or NCCL was not found")
else()
  message(STATUS "CUDA backend: left out (nvcc, cuBLASLt, the static CUDA runtime or NCCL was not found)")
endif()
