# Precompiles the headers that most sources of a target include, if that is turned on. To precompile
# them takes as long as to parse them four times, and 74 MB of disk, so a target of four sources or
# fewer does without.
function(tessera_precompile target)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  if(TESSERA_PRECOMPILED_HEADERS AND count GREATER 4)
    target_precompile_headers(${target} PRIVATE <algorithm> <array> <functional> <map> <memory>
      <optional> <span> <string> <string_view> <utility> <vector> <fmt/format.h>)
  endif()
endfunction()

# tessera_library(NAME FOLDERS dir... LINK target... [PRIVATE target...] [DEFINE macro...])
# Adds the static library tessera_NAME of all .cpp files in the folders. PRIVATE names libraries
# that the headers of tessera_NAME do not include.
function(tessera_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FOLDERS;LINK;PRIVATE;DEFINE")
  list(TRANSFORM arg_FOLDERS APPEND "/*.cpp")
  file(GLOB sources CONFIGURE_DEPENDS ${arg_FOLDERS})
  set(target tessera_${name})
  add_library(${target} STATIC ${sources})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_definitions(${target} PUBLIC ${arg_DEFINE})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tessera>)
  target_link_libraries(${target}
    PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE} $<BUILD_INTERFACE:tessera_flags>)
  tessera_precompile(${target})
endfunction()
