#!/usr/bin/env bash
# Formats the tree: clang-format for C++, gersemi for CMake, ruff for Python, at the versions of requirements.txt.
# With --check it changes nothing and fails on the first kind of file that is not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

mapfile -t cpp < <(git ls-files -co --exclude-standard '*.cpp' '*.h')
mapfile -t cmake < <(git ls-files -co --exclude-standard '*.cmake' 'CMakeLists.txt' '**/CMakeLists.txt')

if [[ ${1:-} == --check ]]; then
  $bin/clang-format --dry-run -Werror "${cpp[@]}"
  $bin/gersemi --check "${cmake[@]}"
  $bin/ruff format --check .
  $bin/ruff check .
elif [[ $# -eq 0 ]]; then
  $bin/clang-format -i "${cpp[@]}"
  $bin/gersemi --in-place "${cmake[@]}"
  $bin/ruff format .
  $bin/ruff check --fix .
else
  echo "usage: tools/format.sh [--check]" >&2
  exit 2
fi
