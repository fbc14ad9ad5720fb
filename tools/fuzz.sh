#!/usr/bin/env bash
# Fuzzers of every parser under the address and undefined-behaviour sanitizers, so many seconds each: 60. They begin
# with tests/fuzz/seeds/NAME/ and what earlier runs found, in build/fuzz/corpus/NAME/. What ends one is left in
# build/fuzz/NAME-*, and `build/fuzz/fuzz_NAME FILE` does it again. A fresh tree tries the same inputs each time, as
# far as the seconds go, so that it fails for what has changed in it; FUZZ_SEED=2, say, tries others.
#
#   [FUZZ_SEED=N] tools/fuzz.sh [SECONDS [NAME …]]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
mkdir -p build
cmake --preset fuzz >build/fuzz.log 2>&1 || { cat build/fuzz.log >&2 && exit 1; }
cmake --build --preset fuzz --parallel "$(nproc)"
names=("$@")
((${#names[@]})) || mapfile -t names < <(basename -s .cpp -a tests/fuzz/*.cpp)

one() {
  local name=$1 log=build/fuzz/$1.log
  mkdir -p "build/fuzz/corpus/$name" "tests/fuzz/seeds/$name"
  if ! "build/fuzz/fuzz_$name" -seed="${FUZZ_SEED:-1}" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 \
    -max_len=16384 -print_final_stats=1 -artifact_prefix="build/fuzz/$name-" "build/fuzz/corpus/$name" "tests/fuzz/seeds/$name" >"$log" 2>&1; then
    tail -60 "$log" >&2
    echo "fuzz: $name FAILED; see $log" >&2
    return 1
  fi
  awk -v name="$name" '/number_of_executed_units/ { runs = $2 } / cov: / { cov = $4 }
    END { printf "%-14s %9d inputs, %5d edges\n", name, runs, cov }' "$log"
}
export -f one
printf '%s\0' "${names[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c "one {} $seconds"
