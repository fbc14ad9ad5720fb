# Installs to a fresh prefix, then configures, builds and runs the project in `source` against it.
#
#   cmake -D source=tests/install -D build=build/dev -D compiler=g++ -P cmake/install_test.cmake
set(prefix ${build}/install_test/prefix)
set(project ${build}/install_test/project)
file(REMOVE_RECURSE ${build}/install_test)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(
  ${CMAKE_COMMAND}
  --install
  ${build}
  --prefix
  ${prefix}
)
run(
  ${CMAKE_COMMAND}
  -S
  ${source}
  -B
  ${project}
  -D
  CMAKE_PREFIX_PATH=${prefix}
  -D
  CMAKE_CXX_COMPILER=${compiler}
)
run(${CMAKE_COMMAND} --build ${project})
run(${project}/example)
# The command starts from where it was installed: it finds LibTorch.
run(
  ${prefix}/bin/shoal
  run
  -n
  2
  ${project}/ranks
)
