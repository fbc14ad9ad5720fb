# What Shoal is built on. Torch comes from the virtual environment that tools/setup.sh makes, or from
# -DCMAKE_PREFIX_PATH; any LibTorch 2.11 or later, with or without CUDA.

if(NOT Torch_DIR AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/.venv)
  file(GLOB _torch_dirs ${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake/Torch)
  list(APPEND _torch_dirs NOTFOUND)
  list(GET _torch_dirs 0 Torch_DIR)
endif()
find_package(Torch REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(doctest REQUIRED)
find_package(Threads REQUIRED)
