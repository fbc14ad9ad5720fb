# shoal_module(NAME ir USES base [TORCH] [THREADS] [BY_FILE] [LIBRARIES fmt::fmt] [FOLDER shoal/ir]
#              [ABSENT /no_cuda.cpp])
#
# Every .cpp of shoal/<name>/ is the library shoal_<name>; every *_test.cpp is in its test program <name>_test;
# main.cpp and the file that is ABSENT are in neither. A module sees only what it USES, and torch's headers only if
# it says TORCH: an include that goes the wrong way does not compile or does not link. THREADS: some of it runs on
# several threads, so the thread sanitizer tests it. BY_FILE: its files are never one unit.
function(shoal_module)
  cmake_parse_arguments(M "TORCH;THREADS;BY_FILE" "NAME;FOLDER;ABSENT" "USES;LIBRARIES" ${ARGN})
  if(M_TORCH AND NOT SHOAL_TORCH)
    return()
  endif()
  if(SHOAL_SANITIZE MATCHES "thread" AND NOT M_THREADS)
    return()
  endif()
  if(NOT M_FOLDER)
    set(M_FOLDER shoal/${M_NAME})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${M_FOLDER}/*.cpp)
  if(M_ABSENT)
    list(FILTER sources EXCLUDE REGEX "${M_ABSENT}$")
  endif()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  if(NOT sources)
    return()
  endif()

  set(target shoal_${M_NAME})
  add_library(${target} STATIC ${sources})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${M_NAME})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(
    ${target}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  )
  foreach(used ${M_USES})
    if(TARGET shoal_${used})
      target_link_libraries(${target} PUBLIC shoal_${used})
    endif()
  endforeach()
  target_link_libraries(${target} PUBLIC ${M_LIBRARIES})
  if(M_TORCH)
    target_link_libraries(${target} PUBLIC shoal_torch)
    set(label torch)
    if(TARGET shoal_models)
      list(APPEND tested_with shoal_models)
    endif()
  else()
    set(label core)
    if(NOT SHOAL_SANITIZE)
      shoal_headers_stand_alone(${M_NAME} ${M_FOLDER})
    endif()
  endif()
  shoal_compiled_as_ours(${target})
  if(NOT M_BY_FILE)
    shoal_in_batches(${target})
  endif()
  if(tests)
    shoal_test(NAME ${M_NAME} SOURCES ${tests} LINKS ${target} ${tested_with} LABEL ${label})
  endif()
endfunction()

# With SHOAL_UNITY several files of a module, SHOAL_UNITY_BATCH at most, are one unit, and so are tests that link
# LibTorch. Names that a file keeps to itself are then the module's, and such a file of tests has a namespace of its
# own.
function(shoal_in_batches target)
  if(SHOAL_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${SHOAL_UNITY_BATCH})
  endif()
endfunction()

# shoal_test(NAME ir SOURCES ir/graph_test.cpp LINKS shoal_ir LABEL core [BY_FILE])
#
# A doctest program <name>_test that ctest runs from the top of the source tree: at once, or file by file, side by
# side.
function(shoal_test)
  cmake_parse_arguments(T "BY_FILE" "NAME;LABEL" "SOURCES;LINKS" ${ARGN})
  add_executable(${T_NAME}_test ${T_SOURCES})
  target_link_libraries(${T_NAME}_test PRIVATE ${T_LINKS} shoal_test_main)
  shoal_compiled_as_ours(${T_NAME}_test)
  if(SHOAL_SANITIZE)
    # Instrumented code hides from g++ that std::optional's content is only read when it is there.
    target_compile_options(${T_NAME}_test PRIVATE -Wno-maybe-uninitialized)
  endif()
  if(T_BY_FILE)
    set(files ${T_SOURCES})
    list(FILTER files INCLUDE REGEX "_test[.]cpp$")
    foreach(source ${files})
      cmake_path(GET source FILENAME file)
      cmake_path(GET source STEM stem)
      string(REPLACE "_test" "" stem ${stem})
      list(APPEND tests ${T_NAME}_${stem})
      add_test(
        NAME ${T_NAME}_${stem}
        COMMAND ${T_NAME}_test --source-file=*/${file}
        WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
      )
    endforeach()
  else()
    set(tests ${T_NAME})
    add_test(NAME ${T_NAME} COMMAND ${T_NAME}_test WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  endif()
  # Threads of OpenMP that have nothing to do leave the cores to ranks that are threads.
  set_tests_properties(
    ${tests}
    PROPERTIES LABELS ${T_LABEL} TIMEOUT 1800 ENVIRONMENT OMP_WAIT_POLICY=passive
  )
endfunction()

# Warnings, and the shared precompiled header for what links LibTorch.
function(shoal_compiled_as_ours target)
  target_compile_options(
    ${target}
    PRIVATE
      -Wall
      -Wextra
      -Wshadow
      -Wconversion
      -Wno-missing-field-initializers # designated initializers leave the rest to their defaults
      -Wno-restrict # g++ 12 sees overlaps in std::string's operator+ that are not there (GCC bug 105651)
      $<$<BOOL:${SHOAL_WERROR}>:-Werror>
  )
  get_target_property(links ${target} LINK_LIBRARIES)
  foreach(link ${links})
    if(TARGET ${link})
      get_target_property(below ${link} INTERFACE_LINK_LIBRARIES)
      list(APPEND links ${below})
    endif()
  endforeach()
  if("shoal_torch" IN_LIST links)
    target_precompile_headers(${target} REUSE_FROM shoal_torch_headers)
    shoal_in_batches(${target})
    if(SHOAL_SANITIZE MATCHES "undefined")
      # These four look at every use of a pointer, in LibTorch's headers too: 40 % of the time, and the address
      # sanitizer sees most of what they do.
      target_compile_options(${target} PRIVATE -fno-sanitize=null,alignment,vptr,object-size)
    endif()
    # Looking through the precompiled header for garbage takes a tenth of the time.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576>)
  endif()
endfunction()

# Compiles each header of a core module by itself.
function(shoal_headers_stand_alone name folder)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${folder}/*.h)
  set(sources)
  foreach(header ${headers})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n")
    list(APPEND sources ${source})
  endforeach()
  if(sources)
    add_library(shoal_${name}_headers OBJECT ${sources})
    target_link_libraries(shoal_${name}_headers PRIVATE shoal_${name})
    shoal_compiled_as_ours(shoal_${name}_headers)
  endif()
endfunction()

add_library(shoal_test_main STATIC ${CMAKE_CURRENT_SOURCE_DIR}/cmake/doctest_main.cpp)
target_link_libraries(shoal_test_main PUBLIC doctest::doctest)
