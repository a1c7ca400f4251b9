# tessera_flags: the flags of Tessera's own sources, not of programs that link its libraries.
include(CheckCXXCompilerFlag)
add_library(tessera_flags INTERFACE)
# GCC 12 warns wrongly of an overflow in fmt 9 wherever a shape is formatted, and of an overlapping
# copy in "a" + std::to_string(i).
target_compile_options(tessera_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wno-stringop-overflow;-Wno-restrict>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-stringop-overflow>)
if(TESSERA_PRECOMPILED_HEADERS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns falsely of copies between short strings if <string> is precompiled.
  target_compile_options(tessera_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds>)
endif()

# Newer compilers have new warnings, which must not break a user's build.
if(TESSERA_WERROR AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"
   AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(tessera_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  # GCC gives these warnings after inlining, which depends on the processor that it compiles for.
  # Some of them are wrong, and they must not break the build on a processor that was never tried.
  target_compile_options(tessera_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds;-Wno-error=maybe-uninitialized>
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=stringop-overread;-Wno-error=free-nonheap-object>
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=nonnull>)
endif()

# Without these two flags GCC leaves many loops scalar. NaN and infinity keep their meaning.
target_compile_options(tessera_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno;-fno-trapping-math>)
if(TESSERA_ARCH)
  target_compile_options(tessera_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-march=${TESSERA_ARCH}>)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  check_cxx_compiler_flag(-mprefer-vector-width=512 TESSERA_HAS_VECTOR_WIDTH)
  if(TESSERA_HAS_VECTOR_WIDTH)
    target_compile_options(tessera_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-mprefer-vector-width=512>)
  endif()
endif()

if(TESSERA_SANITIZE)
  # Full debug information and all checks would nearly double the compile time. So -g1 limits the
  # debug information. With the address sanitizer, five checks of the undefined behaviour sanitizer
  # are left out:
  #  - vptr (virtual tables).
  #  - null (null pointers) and object-size (accesses beyond an object), because the address
  #    sanitizer itself finds these errors.
  #  - pointer-overflow (pointer arithmetic that wraps around) and alignment (misaligned accesses),
  #    which builds with the thread sanitizer have. Emulated kernels keep alignment, because GPUs
  #    refuse misaligned accesses (cmake/cuda.cmake).
  set(sanitizers ${TESSERA_SANITIZE})
  if(TESSERA_SANITIZE MATCHES "thread")
    string(APPEND sanitizers ",alignment,pointer-overflow")
  endif()
  target_compile_options(tessera_flags INTERFACE
    -O1 -g1 -fno-omit-frame-pointer -fno-sanitize-recover=all -fsanitize=${sanitizers})
  if(TESSERA_SANITIZE MATCHES "address")
    target_compile_options(tessera_flags INTERFACE
      -fno-sanitize=vptr,null,object-size,pointer-overflow,alignment)
  endif()
  target_link_options(tessera_flags INTERFACE -fsanitize=${sanitizers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # In sanitized code GCC 12 warns falsely about unset optionals and short strings.
    target_compile_options(tessera_flags INTERFACE -Wno-maybe-uninitialized -Wno-array-bounds)
  endif()
endif()
