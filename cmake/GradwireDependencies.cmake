# What the build needs from the system; docs/dependencies.md says why each is there.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(hwy 1.0.3 REQUIRED CONFIG)
find_package(fmt REQUIRED CONFIG)
find_package(nlohmann_json REQUIRED CONFIG)
find_package(OpenSSL 3.0 REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
find_package(MPI QUIET COMPONENTS C)  # Without it gradwire declines to use mpi, and says so.

# Debian's Highway 1.0.3 declines its 128-bit emulation target (EMU128) under g++ before 12.3, because
# that compiler's auto-vectorizer miscompiles it (GCC bug 106322). EMU128 is our specification: every
# other target must equal it bit for bit. So we ask for it all the same, and src/codec/kernels turns
# the auto-vectorizer off. ALL_ATTAINABLE adds EMU128 to the dispatch table beside the targets that
# make it superfluous in speed. Whoever includes <hwy/highway.h> must see the same two definitions:
# they decide how many targets the table has.
add_library(gradwire_highway INTERFACE)
target_link_libraries(gradwire_highway INTERFACE hwy::hwy)
target_compile_definitions(gradwire_highway INTERFACE HWY_BROKEN_EMU128=0 HWY_COMPILE_ALL_ATTAINABLE)

if(GRADWIRE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED CONFIG)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

if(GRADWIRE_BUILD_TOOLS OR GRADWIRE_BUILD_TESTS)
  find_package(nlohmann_json REQUIRED CONFIG)
  find_path(PROTOZERO_INCLUDE_DIR protozero/pbf_writer.hpp REQUIRED)
  mark_as_advanced(PROTOZERO_INCLUDE_DIR)
endif()

if(GRADWIRE_BUILD_TOOLS)
  find_package(CLI11 REQUIRED CONFIG)
  # The rival of `gradwire bench coder`; without it the benchmark shows our coder alone.
  find_path(HTSCODECS_INCLUDE_DIR htscodecs/rANS_static4x16.h)
  find_library(HTSCODECS_LIBRARY htscodecs)
  mark_as_advanced(HTSCODECS_INCLUDE_DIR HTSCODECS_LIBRARY)
  if(HTSCODECS_INCLUDE_DIR AND HTSCODECS_LIBRARY)
    add_library(htscodecs::htscodecs UNKNOWN IMPORTED)
    set_target_properties(htscodecs::htscodecs PROPERTIES
      IMPORTED_LOCATION "${HTSCODECS_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${HTSCODECS_INCLUDE_DIR}"
      INTERFACE_COMPILE_DEFINITIONS GRADWIRE_HAVE_HTSCODECS=1)
  endif()
endif()
