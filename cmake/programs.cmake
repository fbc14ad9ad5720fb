# What links several modules: the shoal command, examples/, bench/, and the tests that cross modules.

if(NOT SHOAL_TORCH OR NOT TARGET shoal_train)
  return()
endif()

if(TARGET shoal_cli AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/shoal/cli/main.cpp)
  add_executable(shoal shoal/cli/main.cpp)
  target_link_libraries(shoal PRIVATE shoal_cli)
  target_compile_definitions(shoal PRIVATE SHOAL_VERSION="${PROJECT_VERSION}")
  shoal_compiled_as_ours(shoal)

  # The same for a test whose ranks leave out a message: calls of Job::recorded come to it.
  set(recorded _ZN5shoal7elastic3Job8recordedESt10unique_ptrINS_4comm12CommunicatorESt14default_deleteIS4_EE)
  add_executable(shoal_skipping shoal/cli/main.cpp tests/python/cli/skipping.cpp)
  target_link_libraries(shoal_skipping PRIVATE shoal_cli)
  target_link_options(shoal_skipping PRIVATE LINKER:--wrap=${recorded})
  target_compile_definitions(
    shoal_skipping
    PRIVATE SHOAL_VERSION="${PROJECT_VERSION}" SHOAL_RECORDED="${recorded}"
  )
  shoal_compiled_as_ours(shoal_skipping)
endif()

set(all shoal_train shoal_simulate)
foreach(
  target
  shoal_models
  shoal_cli
  shoal_collectives
  shoal_comm_c10d
  shoal_elastic
  shoal_sharding
  shoal_ps
  shoal_world
)
  if(TARGET ${target})
    list(APPEND all ${target})
  endif()
endforeach()

# tests/oracle/*.cpp is oracle_test. Tests with processes of their own have the label dist.
file(GLOB folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${CMAKE_CURRENT_SOURCE_DIR}/tests/*)
foreach(folder ${folders})
  cmake_path(GET folder FILENAME name)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "${absent}$")
  if(sources AND NOT name MATCHES "^(install|fuzz)$")
    set(label torch)
    if(name MATCHES "^(multi_process|fault)$")
      set(label dist)
    endif()
    set(by_file)
    if(name STREQUAL "parallel") # the longest
      set(by_file BY_FILE)
    endif()
    shoal_test(NAME ${name} SOURCES ${sources} LINKS ${all} LABEL ${label} ${by_file})
    if(name STREQUAL "device")
      set_tests_properties(device PROPERTIES LABELS "torch;gpu")
    endif()
  endif()
endforeach()

# The longest begin first.
set_tests_properties(parallel_parallel parallel_pipeline parallel_split parallel_stages PROPERTIES COST 100)
set_tests_properties(oracle multi_process PROPERTIES COST 50)

# One program a file, and run as a test.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/examples/*.cpp)
foreach(source ${sources})
  cmake_path(GET source STEM name)
  add_executable(example_${name} ${source})
  target_link_libraries(example_${name} PRIVATE ${all})
  shoal_compiled_as_ours(example_${name})
  add_test(NAME example_${name} COMMAND example_${name} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(example_${name} PROPERTIES LABELS torch TIMEOUT 300)
endforeach()

# One program a file, all built by the target `bench`.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/bench/*.cpp)
if(sources)
  add_custom_target(bench)
  foreach(source ${sources})
    cmake_path(GET source STEM name)
    add_executable(bench_${name} ${source})
    set_target_properties(
      bench_${name}
      PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/bench
    )
    if(NOT SHOAL_BENCH)
      set_target_properties(bench_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    target_link_libraries(bench_${name} PRIVATE ${all} fmt::fmt-header-only)
    shoal_compiled_as_ours(bench_${name})
    add_dependencies(bench bench_${name})
  endforeach()
  find_package(absl QUIET) # what bench/ps is measured against, where there is one
  if(TARGET bench_ps AND TARGET absl::flat_hash_map)
    target_link_libraries(bench_ps PRIVATE absl::flat_hash_map)
    target_compile_definitions(bench_ps PRIVATE SHOAL_ABSL)
  endif()
endif()
