# gradwire_library(<name> SOURCES <file>... LIBS <target>... PRIVATE_LIBS <target>...)
#
# The static library of one folder of src/. LIBS are seen by whoever uses the folder's headers,
# PRIVATE_LIBS by its sources alone. A folder of headers only becomes an interface library.
function(gradwire_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS;PRIVATE_LIBS")
  if(arg_SOURCES)
    set(scope PUBLIC)
    add_library(${name} STATIC ${arg_SOURCES})
    target_link_libraries(${name} PRIVATE ${arg_PRIVATE_LIBS})
  else()
    set(scope INTERFACE)
    add_library(${name} INTERFACE)
  endif()
  target_include_directories(${name} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${name} ${scope} cxx_std_20)
  target_link_libraries(${name} ${scope} ${arg_LIBS})
  set_property(GLOBAL APPEND PROPERTY GRADWIRE_LIBRARIES ${name})
endfunction()

# gradwire_test(<name> SOURCES <file>... LIBS <target>... [LABELS <label>...])
#
# One GoogleTest binary, run by ctest as one process: starting a process per case costs more than
# most cases do. LABELS tell the cost: unit (the default; seconds) or slow (up to minutes).
function(gradwire_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS;LABELS")
  if(NOT GRADWIRE_BUILD_TESTS OR NOT arg_SOURCES)
    return()
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} GTest::gtest_main Threads::Threads)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 600)
endfunction()

# gradwire_mpi_test(<name> TARGET <program> [ARGUMENTS <argument>...])
#
# Four processes under mpirun. It passes when all of them return 0. ThreadSanitizer cannot see into
# MPI and takes its locks for races.
function(gradwire_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TARGET" "ARGUMENTS")
  if(NOT GRADWIRE_BUILD_TESTS OR GRADWIRE_SANITIZE MATCHES "thread")
    return()
  endif()
  add_test(NAME ${name}
           COMMAND "${MPIEXEC_EXECUTABLE}" --allow-run-as-root --oversubscribe -n 4
                   "$<TARGET_FILE:${arg_TARGET}>" ${arg_ARGUMENTS})
  # A sanitizer stands between us and the loader, which then does not know who asks for the module;
  # and MPI keeps what it allocates.
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 300 PROCESSORS 2
    ENVIRONMENT "LD_LIBRARY_PATH=${GRADWIRE_MODULE_DIR};ASAN_OPTIONS=detect_leaks=0")
endfunction()
