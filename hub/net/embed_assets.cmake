# Writes an assembler file that embeds the pages and the tab's build outputs, file by file (.incbin): no compiler has to
# read them as text.
# usage: cmake -DSTATIC_DIR=static -DWEB_DIR=build/web -DOUTPUT=assets.S -P embed_assets.cmake
# The names found now are the route table of the pages. The file is touched only when a name or a content changed.
set(rows "")
set(sections "")
set(index 0)

macro(embed file path)
  file(SHA256 "${file}" hash)
  string(APPEND sections
    "path_${index}: .asciz \"${path}\"\n"
    "sha_${index}: .asciz \"${hash}\"\n"
    ".balign 16\n"
    "data_${index}: .incbin \"${file}\"\n"
    "end_${index}: .byte 0\n")
  string(APPEND rows
    "  .quad path_${index}\n"
    "  .quad data_${index}\n"
    "  .quad end_${index} - data_${index}\n"
    "  .quad sha_${index}\n")
  math(EXPR index "${index} + 1")
endmacro()

file(GLOB pages "${STATIC_DIR}/*.html" "${STATIC_DIR}/*.svg")
foreach(file ${pages})
  get_filename_component(name "${file}" NAME)
  embed("${file}" "/${name}")
endforeach()
foreach(root "${STATIC_DIR}" "${WEB_DIR}")
  foreach(folder css js wasm vendor)
    file(GLOB_RECURSE found RELATIVE "${root}" "${root}/${folder}/*")
    foreach(name ${found})
      if(NOT name MATCHES "(^|/)\\." AND NOT name MATCHES "\\.(map|d\\.ts|stamp)$")
        embed("${root}/${name}" "/${name}")
      endif()
    endforeach()
  endforeach()
endforeach()

file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT "// Made by hub/net/embed_assets.cmake.
.section .rodata
${sections}
.section .data.rel.ro,\"aw\"
.balign 8
.globl moex_asset_table
moex_asset_table:
${rows}  .quad 0
  .quad 0
  .quad 0
  .quad 0
.section .note.GNU-stack,\"\",%progbits
")
