# `cpack` makes a Debian package and an archive of the installation (scripts/make_package.sh).
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VENDOR Tessera)
set(CPACK_PACKAGE_CONTACT "Tessera's developers <tessera@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
  "Training with sharded optimizers over MPI: library, programs and a course")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# Programs need the libraries that they are linked to. Compiling against the package, as the course
# does, needs a compiler and the headers of the libraries in Tessera's own headers.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "openmpi-bin")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS
  "g++, cmake, make, python3, libopenmpi-dev, libdnnl-dev, libfmt-dev, libspdlog-dev")
include(CPack)
