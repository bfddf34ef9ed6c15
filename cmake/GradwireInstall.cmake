# `cmake --install`: libraries, headers, and how CMake and pkg-config find them.

include(CMakePackageConfigHelpers)

get_property(gradwire_libraries GLOBAL PROPERTY GRADWIRE_LIBRARIES)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gradwire")

install(TARGETS gradwire gradwire_cpp gradwire_highway ${gradwire_libraries}
        EXPORT gradwireTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(TARGET gradwire_mpi)  # Loaded by name, so nobody links it.
  install(TARGETS gradwire_mpi LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/gradwire"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(EXPORT gradwireTargets NAMESPACE gradwire:: DESTINATION "${package_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/gradwireConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/gradwireConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/gradwireConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)  # Below 1.0 a minor version may break.
install(FILES "${PROJECT_BINARY_DIR}/gradwireConfig.cmake"
              "${PROJECT_BINARY_DIR}/gradwireConfigVersion.cmake"
        DESTINATION "${package_dir}")

# Relative to the .pc file, so that the installed tree may be moved.
file(RELATIVE_PATH pc_to_include "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/${CMAKE_INSTALL_INCLUDEDIR}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/gradwire.pc.in" "${PROJECT_BINARY_DIR}/gradwire.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/gradwire.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
