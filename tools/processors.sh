#!/usr/bin/env bash
# The numeric tests as other processors compute them: at each level of instructions below this machine's own.
# ATen, oneDNN and MKL choose their kernels by it, and sums come in another order.
#
#   tools/processors.sh [PYTEST OPTION …]
set -euo pipefail
cd "$(dirname "$0")/.."

# Whether the processor has the instructions; then what ATen, oneDNN and MKL call the level.
levels=(
  "sse4_1 default SSE41 SSE4_2"
  "avx2 avx2 AVX2 AVX2"
  "avx512f avx512 AVX512_CORE AVX512"
)
for level in "${levels[@]}"; do
  read -r flag aten onednn mkl <<<"$level"
  grep -qw "$flag" /proc/cpuinfo || continue
  echo "-- as a processor of $onednn"
  env ATEN_CPU_CAPABILITY="$aten" ONEDNN_MAX_CPU_ISA="$onednn" MKL_ENABLE_INSTRUCTIONS="$mkl" OMP_NUM_THREADS=1 \
    .venv/bin/python -m pytest -q -x tests/python/binding/test_layers.py tests/python/binding/test_families.py "$@"
done
