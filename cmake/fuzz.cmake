# tests/fuzz/*.cpp: one program a file, by libFuzzer, which clang has. tools/fuzz.sh builds and runs them.

if(NOT SHOAL_SANITIZE MATCHES "fuzzer")
  return()
endif()

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/fuzz/*.cpp)
add_custom_target(fuzz)
foreach(source ${sources})
  cmake_path(GET source STEM name)
  add_executable(fuzz_${name} ${source})
  target_link_libraries(
    fuzz_${name}
    PRIVATE
      shoal_checkpoint
      shoal_comm
      shoal_compile
      shoal_data
      shoal_observe
      shoal_program
      shoal_ps
      shoal_rendezvous
      shoal_schedule
  )
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  shoal_compiled_as_ours(fuzz_${name})
  add_dependencies(fuzz fuzz_${name})
endforeach()
# Recipes are the command's, which links LibTorch, but reading them does not.
target_sources(
  fuzz_recipe
  PRIVATE
    models/configs.cpp
    shoal/cli/model_options.cpp
    shoal/cli/read_recipe.cpp
    shoal/cli/recipe.cpp
    shoal/cli/recipe_checks.cpp
)
