#!/usr/bin/env bash
# clang-tidy on the core modules, tests left out, or on the files that are named. With LibTorch's headers a file
# takes a minute, so torch modules are looked at only when named. Debian's asio does not know clang's coroutines
# and has to be told that they are there.
#
#   tools/tidy.sh [FILE …]
set -euo pipefail
cd "$(dirname "$0")/.."

files=("$@")
if ((!${#files[@]})); then
  mapfile -t files < <(ls shoal/{base,observe,rendezvous,comm,ir,sharding,rewrite,planner,program,schedule,cost,simulate,checkpoint,data,elastic,ps}/*.cpp shoal/comm/*/*.cpp | grep -v '_test\.cpp$')
fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c '
  .venv/bin/clang-tidy --config-file=.clang-tidy --quiet "$0" -- -std=c++20 -I. -DASIO_HAS_CO_AWAIT=1 -DASIO_HAS_STD_COROUTINE=1 \
    $(printf -- "-isystem %s " .venv/lib/python3*/site-packages/torch/include{,/torch/csrc/api/include}) 2>/dev/null'
