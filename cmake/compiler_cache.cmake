# Compiles through ccache where it is installed, unless the user names a launcher. Paths below the sources are hashed as
# relative ones, so that a clone in another folder finds what the first one compiled; debug information then names the
# sources relative to the root of the clone, which is where a debugger should be started.
if(TWINSPEED_COMPILER_CACHE)
  find_program(TWS_CCACHE ccache)
  find_program(TWS_ENV env)
  mark_as_advanced(TWS_CCACHE TWS_ENV)
  if(TWS_CCACHE AND TWS_ENV)
    message(STATUS "Compiler cache: ${TWS_CCACHE}")
    foreach(language C CXX CUDA)
      if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER ${TWS_ENV} CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TWS_CCACHE})
      endif()
    endforeach()
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.>")
  endif()
endif()
