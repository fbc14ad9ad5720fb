# The Python package, ready to be imported, in build/<preset>/python; `pip install .` installs the same.

if(NOT TARGET shoal_train OR SHOAL_SANITIZE)
  return()
endif()
# The interpreter that torch belongs to: torch is in its site-packages.
if(NOT Python_EXECUTABLE)
  cmake_path(SET _python NORMALIZE "${TORCH_INSTALL_PREFIX}/../../../../bin/python")
  if(EXISTS ${_python})
    set(Python_EXECUTABLE ${_python})
  endif()
endif()
find_library(TORCH_PYTHON_LIBRARY torch_python PATHS ${TORCH_INSTALL_PREFIX}/lib NO_DEFAULT_PATH)
find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
if(NOT Python_FOUND OR NOT TORCH_PYTHON_LIBRARY)
  message(
    STATUS
    "No Python package: it needs Python's headers and a LibTorch that came with torch for Python"
  )
  return()
endif()

set(package ${CMAKE_CURRENT_BINARY_DIR}/python/shoal)
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/shoal/python/*.cpp)
python_add_library(shoal_python MODULE WITH_SOABI ${sources})
set_target_properties(
  shoal_python
  PROPERTIES OUTPUT_NAME _shoal LIBRARY_OUTPUT_DIRECTORY ${package} CXX_VISIBILITY_PRESET hidden
)
target_link_libraries(shoal_python PRIVATE shoal_world shoal_collectives shoal_torch ${TORCH_PYTHON_LIBRARY})
target_include_directories(shoal_python PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
# pybind11, as torch ships it, wants hidden symbols: a precompiled header of its own, then.
target_compile_options(
  shoal_python
  PRIVATE
    -Wall
    -Wextra
    -Wshadow
    -Wconversion
    -Wno-missing-field-initializers
    -Wno-restrict
    $<$<BOOL:${SHOAL_WERROR}>:-Werror>
)
target_precompile_headers(shoal_python PRIVATE <torch/csrc/utils/pybind.h> <ATen/core/Tensor.h>)
shoal_precompiled_is_known(shoal_python)
shoal_in_batches(shoal_python)

file(
  CONFIGURE
  OUTPUT ${package}/_build.py
  CONTENT
    "# What the extension beside this was built with.
VERSION = \"${PROJECT_VERSION}\"
TORCH_VERSION = \"${Torch_VERSION}\"
"
)
file(GLOB modules CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/python/shoal/*)
foreach(module ${modules})
  cmake_path(GET module FILENAME name)
  if(NOT name STREQUAL "__pycache__")
    file(CREATE_LINK ${module} ${package}/${name} SYMBOLIC)
  endif()
endforeach()
# The command lies where the wheel has it.
file(MAKE_DIRECTORY ${package}/bin)
file(CREATE_LINK ${CMAKE_CURRENT_BINARY_DIR}/shoal ${package}/bin/shoal SYMBOLIC)

# The wheel: scikit-build-core adds python/shoal, and takes this component.
install(TARGETS shoal_python LIBRARY DESTINATION shoal COMPONENT python EXCLUDE_FROM_ALL)
install(FILES ${package}/_build.py DESTINATION shoal COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET shoal)
  install(TARGETS shoal RUNTIME DESTINATION shoal/bin COMPONENT python EXCLUDE_FROM_ALL)
endif()
