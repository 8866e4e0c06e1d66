# The shared library of library/twinspeed.h: the core behind one public header. Its map lists every name that it exports.
file(GLOB TWS_LIBRARY_SOURCES CONFIGURE_DEPENDS library/*.c)
add_library(twinspeed-shared SHARED ${TWS_LIBRARY_SOURCES})
set_target_properties(twinspeed-shared PROPERTIES OUTPUT_NAME twinspeed VERSION ${PROJECT_VERSION} SOVERSION 0
  C_VISIBILITY_PRESET hidden LINK_DEPENDS ${CMAKE_SOURCE_DIR}/library/twinspeed.map)
target_compile_definitions(twinspeed-shared PRIVATE TWS_VERSION="${PROJECT_VERSION}")
target_link_libraries(twinspeed-shared PRIVATE twinspeed)
target_link_options(twinspeed-shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/library/twinspeed.map)
# In a wheel the libraries that it needs are beside it, and beside the simulator's module; DT_RPATH holds for theirs, too.
foreach(target twinspeed-shared twinspeed_sim)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES BUILD_RPATH "\$ORIGIN" INSTALL_RPATH "\$ORIGIN")
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  endif()
endforeach()
