# tessera.pc, tessera-ratings.pc and tessera-images.pc, for programs that are not built by CMake.
# All of Tessera's libraries are static, so Libs also lists the libraries that they need. The prefix
# is relative to the folder of the .pc file, so that an installation can be moved.
set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH PC_TO_PREFIX /prefix/${pc_folder} /prefix)

# tessera_pc(NAME DESCRIPTION text REQUIRES text LIBS word... CFLAGS word...)
function(tessera_pc name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DESCRIPTION;REQUIRES" "LIBS;CFLAGS")
  set(PC_NAME ${name})
  set(PC_DESCRIPTION ${arg_DESCRIPTION})
  set(PC_REQUIRES ${arg_REQUIRES})
  list(JOIN arg_LIBS " " PC_LIBS)
  list(JOIN arg_CFLAGS " " PC_CFLAGS)
  configure_file(cmake/tessera.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${pc_folder})
endfunction()

set(pc_flags "-I\${includedir}" ${OpenMP_CXX_FLAGS} -DOMPI_SKIP_MPICXX)
foreach(folder IN LISTS MPI_C_INCLUDE_DIRS)
  list(APPEND pc_flags -I${folder})
endforeach()
set(pc_libraries -ltessera_train -ltessera_models -ltessera_optim -ltessera_dist -ltessera_data
  -ltessera_nn -ltessera_core ${MPI_C_LIBRARIES} ${OneDNN_LIBRARY} ${OpenMP_CXX_FLAGS})
if(tessera_cuda)
  list(APPEND pc_flags -DTESSERA_WITH_CUDA)
endif()
if(tessera_cuda STREQUAL "nvcc")
  list(APPEND pc_libraries ${TESSERA_NCCL} -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt
    -lpthread)
endif()
tessera_pc(tessera DESCRIPTION "Training with sharded optimizers over MPI or NCCL"
  REQUIRES "fmt spdlog" LIBS ${pc_libraries} CFLAGS ${pc_flags})
tessera_pc(tessera-ratings DESCRIPTION "Tessera's rating data sets and recommenders"
  REQUIRES "tessera zlib" LIBS -ltessera_train_ratings -ltessera_ratings -ltessera_files)
tessera_pc(tessera-images DESCRIPTION "Tessera's image data sets and classifiers"
  REQUIRES "tessera-ratings libjpeg libpng"
  LIBS -ltessera_train_images -ltessera_images -ltessera_files)
