# Program and modules share structs, so what was built from other headers has to be refused: their fingerprint is the
# interface's version. Run with -P it writes OUTPUT from FILES, where it has changed.
if(CMAKE_SCRIPT_MODE_FILE)
  set(text)
  foreach(file ${FILES})
    file(MD5 ${file} one)
    string(APPEND text ${one})
  endforeach()
  string(MD5 all "${text}")
  string(SUBSTRING ${all} 0 7 version) # of an int
  file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "enum { TWS_INTERFACE = 0x${version} }; /* of all headers: cmake/interface.cmake */\n")
  return()
endif()

set(TWS_INTERFACE_DIR ${CMAKE_BINARY_DIR}/generated)
file(GLOB TWS_INTERFACE_FILES CONFIGURE_DEPENDS */*.h */*.def */*.inc models/*/*.h models/*/*.def real/cuda/cuda.h)
list(FILTER TWS_INTERFACE_FILES EXCLUDE REGEX "/(tests|bench|cli|build[^/]*)/[^/]*$")
add_custom_command(OUTPUT ${TWS_INTERFACE_DIR}/stamp
  COMMAND ${CMAKE_COMMAND} "-DFILES=${TWS_INTERFACE_FILES}" -DOUTPUT=${TWS_INTERFACE_DIR}/build_interface.h -P
          ${CMAKE_CURRENT_LIST_FILE}
  COMMAND ${CMAKE_COMMAND} -E touch ${TWS_INTERFACE_DIR}/stamp
  DEPENDS ${TWS_INTERFACE_FILES} ${CMAKE_CURRENT_LIST_FILE} BYPRODUCTS ${TWS_INTERFACE_DIR}/build_interface.h VERBATIM)
add_custom_target(tws_interface DEPENDS ${TWS_INTERFACE_DIR}/stamp)
