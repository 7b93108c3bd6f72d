# Writes an assembler file that embeds the pages and the tab's build outputs, file by file (.incbin): no compiler has to
# read them as text. Each as it is, and as brotli and gzip where that is smaller.
# usage: cmake -DSTATIC_DIR=static -DWEB_DIR=build/web -DPACKED_DIR=build/packed -DNODE=node -DOUTPUT=assets.S
#          -P embed_assets.cmake
# The names found now are the route table of the pages. The file is touched only when a name or a content changed.
set(files "")
set(names "")
macro(add file name)
  list(APPEND files "${file}")
  list(APPEND names "${name}")
endmacro()

file(GLOB pages "${STATIC_DIR}/*.html" "${STATIC_DIR}/*.svg" "${STATIC_DIR}/service_worker.js")
foreach(file ${pages})
  get_filename_component(name "${file}" NAME)
  add("${file}" "/${name}")
endforeach()
foreach(root "${STATIC_DIR}" "${WEB_DIR}")
  foreach(folder css js wasm vendor)
    file(GLOB_RECURSE found RELATIVE "${root}" "${root}/${folder}/*")
    foreach(name ${found})
      if(NOT name MATCHES "(^|/)\\." AND NOT name MATCHES "\\.(map|d\\.ts|stamp)$")
        add("${root}/${name}" "/${name}")
      endif()
    endforeach()
  endforeach()
endforeach()

list(JOIN files "\n" lines)
file(WRITE "${PACKED_DIR}/list" "${lines}\n")
execute_process(COMMAND "${NODE}" "${CMAKE_CURRENT_LIST_DIR}/compress_assets.mjs" "${PACKED_DIR}"
  INPUT_FILE "${PACKED_DIR}/list" COMMAND_ERROR_IS_FATAL ANY)

# A row: path, hash, and three times begin and size: as it is, brotli, gzip (0 and 0 where that is no smaller).
set(rows "")
set(sections "")
set(index 0)
foreach(file name IN ZIP_LISTS files names)
  file(SHA256 "${file}" hash)
  string(APPEND sections "path_${index}: .asciz \"${name}\"\nsha_${index}: .asciz \"${hash}\"\n")
  string(APPEND rows "  .quad path_${index}, sha_${index}\n")
  foreach(form "${file}" "${PACKED_DIR}/${hash}.br" "${PACKED_DIR}/${hash}.gz")
    file(SIZE "${form}" size)
    if(size EQUAL 0 AND NOT form STREQUAL file)
      string(APPEND rows "  .quad 0, 0\n")
    else()
      string(APPEND sections ".balign 16\ndata_${index}: .incbin \"${form}\"\n.byte 0\n")
      string(APPEND rows "  .quad data_${index}, ${size}\n")
    endif()
    math(EXPR index "${index} + 1")
  endforeach()
endforeach()

file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT "// Made by hub/net/embed_assets.cmake.
.section .rodata
${sections}
.section .data.rel.ro,\"aw\"
.balign 8
.globl moex_asset_table
moex_asset_table:
${rows}  .quad 0, 0, 0, 0, 0, 0, 0, 0
.section .note.GNU-stack,\"\",%progbits
")
