# cmake --install: the libraries, the headers, the command, and the package that find_package(Shoal) reads.

if(NOT TARGET shoal_train)
  return()
endif()
include(CMakePackageConfigHelpers)

add_library(shoal_all INTERFACE)
set_target_properties(shoal_all PROPERTIES EXPORT_NAME Shoal)
target_link_libraries(shoal_all INTERFACE shoal_world shoal_collectives)
add_library(Shoal::Shoal ALIAS shoal_all)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Shoal)
set(libraries shoal_all shoal_torch)
foreach(
  module
  base
  observe
  ir
  rendezvous
  comm
  ps
  elastic
  sharding
  rewrite
  planner
  program
  schedule
  cost
  simulate
  compile
  checkpoint
  data
  aten
  comm_c10d
  collectives
  capture
  runtime
  train
  world
)
  if(TARGET shoal_${module})
    list(APPEND libraries shoal_${module})
  endif()
endforeach()
install(TARGETS ${libraries} EXPORT ShoalTargets)
install(EXPORT ShoalTargets NAMESPACE Shoal:: DESTINATION ${package})
install(
  DIRECTORY shoal
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING
  PATTERN "*.h"
  PATTERN "cli" EXCLUDE
  PATTERN "*_test.h" EXCLUDE
  PATTERN "declarations" EXCLUDE
)
if(TARGET shoal)
  install(TARGETS shoal)
endif()

configure_package_config_file(cmake/ShoalConfig.cmake.in ShoalConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(ShoalConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES ${CMAKE_CURRENT_BINARY_DIR}/ShoalConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/ShoalConfigVersion.cmake
  DESTINATION ${package}
)

# An example project outside the tree, built against what was installed.
if(NOT SHOAL_SANITIZE)
  add_test(
    NAME install
    COMMAND
      ${CMAKE_COMMAND} -D source=${CMAKE_CURRENT_SOURCE_DIR}/tests/install -D
      build=${CMAKE_CURRENT_BINARY_DIR} -D compiler=${CMAKE_CXX_COMPILER} -P
      ${CMAKE_CURRENT_SOURCE_DIR}/cmake/install_test.cmake
  )
  set_tests_properties(install PROPERTIES LABELS torch TIMEOUT 900)
endif()
