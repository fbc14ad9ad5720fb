# What Shoal is built on. Torch comes from the virtual environment that tools/setup.sh makes, or from
# -DCMAKE_PREFIX_PATH or -DTorch_DIR; any LibTorch 2.11 or later, with or without CUDA.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(doctest REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
# Headers alone, in any prefix.
foreach(header toml++/toml.h asio.hpp CLI/CLI.hpp)
  string(MAKE_C_IDENTIFIER HEADER_DIR_${header} dir)
  find_path(${dir} ${header} REQUIRED)
  include_directories(SYSTEM ${${dir}})
endforeach()
find_path(ROCKSDB_INCLUDE_DIR rocksdb/db.h)
find_library(ROCKSDB_LIBRARY rocksdb)
# Of PyPI's highspy, in the virtual environment that tools/setup.sh makes.
file(GLOB _highs_dirs ${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages/highspy)
find_file(HIGHS_LIBRARY libhighs.so.1 HINTS ${_highs_dirs} NO_DEFAULT_PATH)

if(NOT SHOAL_TORCH)
  return()
endif()

# A wheel is for the torch of the interpreter that builds it, which pip's isolation hides by PYTHONPATH.
if(NOT Torch_DIR AND SKBUILD)
  execute_process(
    COMMAND
      ${CMAKE_COMMAND} -E env --unset=PYTHONPATH ${Python_EXECUTABLE} -c
      "import importlib.util; print(*importlib.util.find_spec('torch').submodule_search_locations, end='')"
    OUTPUT_VARIABLE _torch
    ERROR_QUIET
  )
  if(NOT EXISTS ${_torch}/share/cmake/Torch)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no torch: install torch 2.13 first, then shoal")
  endif()
  set(Torch_DIR ${_torch}/share/cmake/Torch)
endif()
if(NOT Torch_DIR)
  file(GLOB _torch_dirs ${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake/Torch)
  list(APPEND _torch_dirs Torch_DIR-NOTFOUND)
  list(GET _torch_dirs 0 Torch_DIR)
endif()
set(CMAKE_MESSAGE_LOG_LEVEL ERROR) # it warns about an optional static library that no wheel has
find_package(Torch 2.11 REQUIRED)
unset(CMAKE_MESSAGE_LOG_LEVEL)
# CMAKE_INSTALL_RPATH_USE_LINK_PATH leaves out what lies inside the source tree, as .venv does.
list(APPEND CMAKE_INSTALL_RPATH ${TORCH_INSTALL_PREFIX}/lib)
add_compile_options(${TORCH_CXX_FLAGS})

# LibTorch as one target. The standard library before it: 2.11 exports a std::filesystem of its own, which calls
# what it has not.
add_library(shoal_torch INTERFACE)
target_link_libraries(shoal_torch INTERFACE stdc++ torch torch_library)

# The headers that nearly every torch file needs, compiled once. Not torch/torch.h: loading that costs each file
# 15 s, this 4.5 s (g++ 12, 2 cores).
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/torch_headers.cpp CONTENT "")
add_library(shoal_torch_headers OBJECT ${CMAKE_CURRENT_BINARY_DIR}/torch_headers.cpp)
target_link_libraries(shoal_torch_headers PRIVATE shoal_torch)
target_precompile_headers(
  shoal_torch_headers
  PRIVATE <torch/types.h> <torch/nn/module.h> <torch/csrc/autograd/autograd.h>
)

# Says what target's precompiled header is made of: ccache (CCACHE_PCH_EXTSUM) reads this at each file, not the half
# gigabyte itself.
function(shoal_precompiled_is_known target)
  get_target_property(headers ${target} PRECOMPILE_HEADERS)
  file(
    CONFIGURE
    OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/cmake_pch.hxx.gch.sum
    CONTENT
      "${headers} LibTorch ${Torch_VERSION} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}
"
  )
endfunction()
shoal_precompiled_is_known(shoal_torch_headers)
