# Generates corpus.txt in the build directory from Tessera's own sources and documents. run.sh
# trains on corpus.txt.
set(folders core nn dist optim models data train apps tests bench docs scripts)
set(patterns ${PROJECT_SOURCE_DIR}/*.md ${PROJECT_SOURCE_DIR}/*.h ${PROJECT_SOURCE_DIR}/*.sh)
file(GLOB corpus CONFIGURE_DEPENDS ${patterns})
set(patterns)
foreach(folder IN LISTS folders)
  foreach(type IN ITEMS md h cpp sh)
    list(APPEND patterns ${PROJECT_SOURCE_DIR}/${folder}/*.${type})
  endforeach()
endforeach()
file(GLOB_RECURSE nested CONFIGURE_DEPENDS ${patterns})
list(APPEND corpus ${nested})
list(SORT corpus)
add_custom_command(OUTPUT corpus.txt DEPENDS ${corpus} VERBATIM
  COMMAND ${CMAKE_COMMAND} -E cat ${corpus} > ${PROJECT_BINARY_DIR}/corpus.txt
  COMMENT "Gathering corpus.txt")
add_custom_target(corpus ALL DEPENDS corpus.txt)
