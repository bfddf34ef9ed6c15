# Compiler settings for every target of the project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)  # Users of the C ABI may be that conservative; our C tests hold us to it.
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Everything may end up inside libgradwire.so or a Python module, and those show only their interface.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# Modules that are loaded on demand (libgradwire_mpi.so) are found by whatever contains us: in the
# build tree here, installed beside it or in the library folder beside its own.
set(GRADWIRE_MODULE_DIR "${PROJECT_BINARY_DIR}/lib")
list(APPEND CMAKE_BUILD_RPATH "${GRADWIRE_MODULE_DIR}")
list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN" "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")

find_program(GRADWIRE_CCACHE ccache)
mark_as_advanced(GRADWIRE_CCACHE)
if(GRADWIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${GRADWIRE_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${GRADWIRE_CCACHE}")
endif()

# A compiler that fuses a*b+c where the CPU can would give other floats on other CPUs. Replicas must
# agree bit for bit, so fusing is off in every file, not only in the kernels.
add_compile_options(-ffp-contract=off)

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
if(GRADWIRE_DEVELOPER_MODE)
  add_compile_options(-Werror)
endif()

# "fuzzer" instruments all code for coverage; only fuzz targets get libFuzzer's main (see fuzz/).
set(GRADWIRE_FUZZING OFF)
if(GRADWIRE_SANITIZE)
  string(REPLACE "," ";" sanitizers "${GRADWIRE_SANITIZE}")
  if("fuzzer" IN_LIST sanitizers)
    set(GRADWIRE_FUZZING ON)
    list(TRANSFORM sanitizers REPLACE "^fuzzer$" "fuzzer-no-link")
  endif()
  if("undefined" IN_LIST sanitizers)
    # Not part of "undefined", but "nothing divides by zero" is a promise of the codecs.
    list(APPEND sanitizers float-divide-by-zero)
  endif()
  if("thread" IN_LIST sanitizers)
    # With g++ 12, kernels for AVX-512 write beyond their output once -fsanitize=thread is in them; as
    # they are, and with the address sanitizer, they do not.
    add_compile_definitions("HWY_DISABLED_TARGETS=(HWY_AVX3|HWY_AVX3_DL)")
  endif()
  list(JOIN sanitizers "," sanitizers)
  add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${sanitizers})
endif()
