# The package for find_package(Tessera): libraries, headers under include/tessera, and the programs.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
set(header_dir ${CMAKE_INSTALL_INCLUDEDIR}/tessera)

set(package_libraries tessera_core tessera_nn tessera_dist tessera_optim tessera_models tessera_data
  tessera_train)
set(rating_libraries tessera_files tessera_ratings tessera_train_ratings)
set(image_libraries tessera_images tessera_train_images)

# Before anything is installed, checks that all targets are built; run.sh, for instance, builds only
# some. The error message has the command that builds the missing targets.
set(missing "")
foreach(target IN LISTS programs package_libraries rating_libraries image_libraries)
  string(APPEND missing "if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
  string(APPEND missing \" ${target}\")
endif()
")
endforeach()
install(CODE "set(missing \"\")
${missing}if(missing)
  message(FATAL_ERROR \"Nothing is installed, because a part is not built. This builds the rest:
  cmake --build '${PROJECT_BINARY_DIR}' --target\${missing}\")
endif()")

install(TARGETS ${programs})
install(EXPORT Tessera NAMESPACE Tessera:: FILE TesseraTargets.cmake DESTINATION ${package_dir})
install(TARGETS tessera ${package_libraries} EXPORT Tessera)
# The component `ratings` needs zlib. It is separate, so that other programs do not need zlib.
install(EXPORT TesseraRatings NAMESPACE Tessera:: FILE TesseraRatingsTargets.cmake
  DESTINATION ${package_dir})
install(TARGETS ${rating_libraries} EXPORT TesseraRatings)
# The component `images` needs JPEG, PNG and the component `ratings`, which reads compressed files.
install(EXPORT TesseraImages NAMESPACE Tessera:: FILE TesseraImagesTargets.cmake
  DESTINATION ${package_dir})
install(TARGETS ${image_libraries} EXPORT TesseraImages)
install(FILES tessera.h DESTINATION ${header_dir})
# Students copy the course from share/tessera, and build it against the package.
install(DIRECTORY course DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera USE_SOURCE_PERMISSIONS
  PATTERN build EXCLUDE PATTERN __pycache__ EXCLUDE)
# The course names pages of docs.
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera
  PATTERN *.py EXCLUDE PATTERN __pycache__ EXCLUDE)
install(DIRECTORY core nn dist optim models data train DESTINATION ${header_dir}
  FILES_MATCHING PATTERN *.h)

configure_package_config_file(cmake/TesseraConfig.cmake.in TesseraConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(TesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/FindOneDNN.cmake ${PROJECT_BINARY_DIR}/TesseraConfig.cmake
  ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake DESTINATION ${package_dir})
