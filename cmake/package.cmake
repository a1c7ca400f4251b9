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
# The package depends on mpirun and on the libraries that its programs are linked to. What is needed
# only to compile programs with Tessera, as in the course, is recommended: a compiler and build
# tools, the libraries whose headers Tessera's own headers include, and the libraries that the
# components ratings and images need.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "openmpi-bin")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS
  "g++, cmake, make, python3, libopenmpi-dev, libdnnl-dev, libfmt-dev, libspdlog-dev, \
zlib1g-dev, libjpeg-dev, libpng-dev")
include(CPack)
