# Generates page_parts.cpp: the style and the scripts of the report page as C++ string literals.
set(page_folder ${PROJECT_SOURCE_DIR}/train/report/page)
set(page_scripts basics chart bars ownership timeline images page)

function(page_text result file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_folder}/${file})
  file(READ ${page_folder}/${file} text)
  set(${result} "R\"page(${text})page\"" PARENT_SCOPE)
endfunction()

page_text(PAGE_STYLE style.css)
set(PAGE_SCRIPTS "")
foreach(script IN LISTS page_scripts)
  page_text(text ${script}.js)
  string(APPEND PAGE_SCRIPTS "    ${text},\n")
endforeach()
configure_file(cmake/page_parts.cpp.in page_parts.cpp @ONLY)
target_sources(tessera_train PRIVATE ${PROJECT_BINARY_DIR}/page_parts.cpp)
