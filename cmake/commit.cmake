# Run at build time: writes OUTPUT with the commit that is being built, if it changed.
execute_process(COMMAND git describe --always --dirty --abbrev=12 WORKING_DIRECTORY ${SOURCE_DIR}
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
endif()
file(WRITE ${OUTPUT}.new "// Made by cmake/commit.cmake.\n#pragma once\n\nnamespace weft {\n\n"
  "inline constexpr const char* kCommit = \"${commit}\";\n\n}  // namespace weft\n")
file(COPY_FILE ${OUTPUT}.new ${OUTPUT} ONLY_IF_DIFFERENT)
