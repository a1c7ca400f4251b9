# Decides how CUDA code is built: emulated on the CPU if asked for, else by nvcc, or not at all.
#   TESSERA_CUDA       AUTO (by nvcc if nvcc and NCCL are found and new enough, unless all GPUs of
#                      the machine are too old), ON (as AUTO, but an error if not possible), OFF
#   TESSERA_EMULATED   compile the .cu files as host C++ against the headers in emulated/include
# Sets tessera_cuda to nvcc, emulated or OFF, and tessera_cuda_libraries to the libraries that all
# CUDA code is linked to (none in a build without nvcc). dist/ is also linked to NCCL.
set(TESSERA_CUDA AUTO CACHE STRING "Build for CUDA: AUTO, ON or OFF")
set_property(CACHE TESSERA_CUDA PROPERTY STRINGS AUTO ON OFF)
option(TESSERA_EMULATED "Compile the CUDA code for the CPU, to test it without a GPU" OFF)
set(TESSERA_CUDA_ARCHITECTURES "" CACHE STRING
  "Compute capabilities, as 80;90; empty for those of the machine's GPUs, or 90 without one")
set(tessera_least_nvcc 12)    # the first with C++20
set(tessera_least_nccl 2.19)  # the first with ncclMemAlloc

# Sets `why` to the reason why no CUDA code can be built. If CUDA code can be built, sets `why` to
# an empty text, and `architectures` to the compute capabilities for which the code is compiled.
function(tessera_find_cuda)
  find_program(TESSERA_NVCC nvcc HINTS $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda
    PATH_SUFFIXES bin)
  if(NOT TESSERA_NVCC)
    set(why "nvcc is not installed" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${TESSERA_NVCC} --version OUTPUT_VARIABLE shown ERROR_QUIET)
  if(NOT shown MATCHES "release ([0-9.]+)")
    set(why "${TESSERA_NVCC} does not work" PARENT_SCOPE)
    return()
  elseif(CMAKE_MATCH_1 VERSION_LESS tessera_least_nvcc)
    set(why "nvcc is version ${CMAKE_MATCH_1}, expected ${tessera_least_nvcc} or later"
      PARENT_SCOPE)
    return()
  endif()
  cmake_path(GET TESSERA_NVCC PARENT_PATH bin)
  find_library(TESSERA_NCCL nccl HINTS ${bin}/../lib64)
  find_path(TESSERA_NCCL_INCLUDE nccl.h HINTS ${bin}/../include)
  if(NOT TESSERA_NCCL OR NOT TESSERA_NCCL_INCLUDE)
    set(why "NCCL is not installed" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS ${TESSERA_NCCL_INCLUDE}/nccl.h shown REGEX "define NCCL_(MAJOR|MINOR) ")
  string(REGEX REPLACE "[^0-9;]" "" nccl "${shown}")
  list(JOIN nccl "." nccl)
  if(nccl VERSION_LESS tessera_least_nccl)
    set(why "NCCL is version ${nccl}, expected ${tessera_least_nccl} or later" PARENT_SCOPE)
    return()
  endif()
  set(found ${TESSERA_CUDA_ARCHITECTURES})
  if(NOT found)
    # Kernels use instructions for bf16, which GPUs have from compute capability 8.0 on.
    tessera_present_capabilities(found)
    set(old ${found})
    list(FILTER old INCLUDE REGEX "^[0-7][.]")
    list(FILTER found EXCLUDE REGEX "^[0-7][.]")
    if(NOT found)
      set(why "the GPUs have compute capability ${old}, expected 8.0 or later" PARENT_SCOPE)
      return()
    elseif(old)
      message(STATUS "Without CUDA on GPUs of compute capability ${old}, expected 8.0 or later; "
        "hide them from programs with CUDA_VISIBLE_DEVICES")
    endif()
    string(REPLACE "." "" found "${found}")
  elseif(found MATCHES "(^|;)[5-7][0-9]")
    set(why "TESSERA_CUDA_ARCHITECTURES is ${found}, expected 80 or later" PARENT_SCOPE)
    return()
  endif()
  # CUDACXX is set rather than CMAKE_CUDA_COMPILER, because check_language does not try the compiler
  # if CMAKE_CUDA_COMPILER is set.
  set(ENV{CUDACXX} ${TESSERA_NVCC})
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(why "${TESSERA_NVCC} does not work" PARENT_SCOPE)
    return()
  endif()
  set(why "" PARENT_SCOPE)
  set(architectures ${found} PARENT_SCOPE)
endfunction()

# Sets `result` to the compute capabilities of the GPUs that the driver shows, or to 9.0 if it shows
# none.
function(tessera_present_capabilities result)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE shown ERROR_QUIET RESULT_VARIABLE status)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${shown}")
  if(NOT status EQUAL 0 OR NOT capabilities)
    set(capabilities 9.0)
  endif()
  list(REMOVE_DUPLICATES capabilities)
  set(${result} ${capabilities} PARENT_SCOPE)
endfunction()

set(tessera_cuda OFF)
set(tessera_cuda_libraries "")
if(TESSERA_EMULATED)
  set(tessera_cuda emulated)
  message(STATUS "With CUDA, emulated on the CPU")
elseif(TESSERA_CUDA)
  tessera_find_cuda()
  if(why AND NOT TESSERA_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TESSERA_CUDA is ${TESSERA_CUDA}, but ${why}")
  elseif(why)
    message(STATUS "Without CUDA: ${why}")
  else()
    set(tessera_cuda nvcc)
  endif()
else()
  message(STATUS "Without CUDA: TESSERA_CUDA is ${TESSERA_CUDA}")
endif()

if(tessera_cuda STREQUAL "nvcc")
  set(CMAKE_CUDA_ARCHITECTURES ${architectures})
  enable_language(CUDA)
  message(STATUS "With CUDA: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for compute capability "
    "${CMAKE_CUDA_ARCHITECTURES}")
  # CMake 3.25 does not know that nvcc 12 and later have C++20.
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit REQUIRED)
  # cuBLASLt and cuDNN are not linked: core/cuda/delayed loads them when they are first used.
  set(tessera_cuda_libraries CUDA::cudart_static ${CMAKE_DL_LIBS})
  find_path(TESSERA_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT TESSERA_CUDNN_INCLUDE)
    message(STATUS "Without cuDNN: its headers are not installed, so that a GPU has no convolution")
  endif()
  # Keeps the folders of linked libraries in the RPATH of installed programs, so that the programs
  # find NCCL.
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
endif()

# tessera_add_cuda(TARGET FOLDERS dir...): gives a library the sources that depend on CUDA: dir/*.cu
# and dir/cuda in a build with CUDA, dir/no_cuda in one without. Only a build by nvcc has
# dir/cuda/delayed, which loads libraries when they are first used: the emulated build has its own
# versions of these libraries. In a build by nvcc without cuDNN's headers, dir/cuda/no_cudnn
# replaces the files that have cudnn in their names.
function(tessera_add_cuda target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FOLDERS")
  foreach(folder IN LISTS arg_FOLDERS)
    if(NOT tessera_cuda)
      file(GLOB sources CONFIGURE_DEPENDS ${folder}/no_cuda/*.cpp)
      target_sources(${target} PRIVATE ${sources})
      continue()
    endif()
    file(GLOB kernels CONFIGURE_DEPENDS ${folder}/*.cu ${folder}/cuda/*.cu)
    file(GLOB sources CONFIGURE_DEPENDS ${folder}/cuda/*.cpp)
    target_sources(${target} PRIVATE ${kernels})
    if(tessera_cuda STREQUAL "nvcc")
      file(GLOB delayed CONFIGURE_DEPENDS ${folder}/cuda/delayed/*.cpp)
      if(NOT TESSERA_CUDNN_INCLUDE)
        list(FILTER sources EXCLUDE REGEX "cudnn")
        list(FILTER delayed EXCLUDE REGEX "cudnn")
        file(GLOB without CONFIGURE_DEPENDS ${folder}/cuda/no_cudnn/*.cpp)
        list(APPEND sources ${without})
      endif()
      target_sources(${target} PRIVATE ${delayed})
      set_source_files_properties(${delayed} PROPERTIES
        COMPILE_DEFINITIONS TESSERA_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
    else()
      set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)
      if(TESSERA_SANITIZE MATCHES "address" AND TESSERA_SANITIZE MATCHES "undefined")
        # cmake/flags.cmake leaves the alignment check out of builds with the address sanitizer.
        # Emulated kernels get it back, because a GPU refuses misaligned accesses of vector types
        # such as float4, and the CPU does not. Only the library of the undefined behaviour
        # sanitizer can report such accesses, so the build must have this sanitizer, too.
        set_source_files_properties(${kernels} PROPERTIES
          COMPILE_OPTIONS -fsanitize=alignment SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endif()
    target_sources(${target} PRIVATE ${sources})
  endforeach()
  if(NOT tessera_cuda)
    return()
  endif()
  target_compile_definitions(${target} PUBLIC TESSERA_WITH_CUDA)
  if(tessera_cuda STREQUAL "nvcc")
    target_link_libraries(${target} PRIVATE ${tessera_cuda_libraries})
    if(TESSERA_CUDNN_INCLUDE)
      target_include_directories(${target} SYSTEM PRIVATE ${TESSERA_CUDNN_INCLUDE})
    endif()
    # --expt-relaxed-constexpr: kernels call constexpr host functions of half.h and random.h.
    # FMT_USE_CONSTEXPR: fmt 9 assumes that nvcc lacks constexpr, and then fmt's check of format
    # strings does not compile.
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:\
--expt-relaxed-constexpr;-DFMT_USE_CONSTEXPR=1;-Xcompiler=${OpenMP_CXX_FLAGS}>")
  else()
    target_include_directories(${target} BEFORE PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/emulated/include>)
  endif()
endfunction()
