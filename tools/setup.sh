#!/usr/bin/env bash
# Installs what is missing: Debian packages, and a virtual environment in .venv with the CPU build of torch.
# When nothing is missing it asks no network and takes a fraction of a second. With --tests it installs what only
# tests want, too: other people's programs. With --demo only what the command itself needs.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
torch_index=https://download.pytorch.org/whl/cpu

say() { echo "setup: $*"; }
fail() {
  echo "setup: $1" >&2
  shift
  for line in "$@"; do echo "    $line" >&2; done
  exit 1
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# during WHAT HOW_LONG COMMAND …: its output goes to the log; on a terminal the seconds go by meanwhile.
during() {
  local what=$1 usual=$2 begin=$SECONDS job
  shift 2
  "$@" >"$log" 2>&1 </dev/null &
  job=$!
  if [[ -t 1 ]]; then
    while kill -0 "$job" 2>/dev/null; do
      printf '\rsetup: %s: %d s, of %s usually' "$what" $((SECONDS - begin)) "$usual"
      sleep 1
    done
    printf '\r\033[K'
  else
    say "$what: $usual usually"
  fi
  wait "$job" || return
  say "$what: $((SECONDS - begin)) s"
}

mode=${1:-}
lists=(tools/packages.txt)
[[ $mode != --tests ]] || lists+=(tools/packages_tests.txt)
missing=()
while read -r package; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done < <(grep -hv '^#' "${lists[@]}")

if ((${#missing[@]})); then
  if [[ $(id -u) != 0 ]]; then
    fail "packages are missing; run this, then try again:" "sudo apt-get install -y ${missing[*]}"
  fi
  export DEBIAN_FRONTEND=noninteractive
  add_packages() { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; }
  say "Debian's ${missing[*]}"
  if ! during "installing ${#missing[@]} Debian packages" "a minute" add_packages; then
    tail -n 20 "$log" >&2
    fail "apt-get could not install the packages; its last words are above"
  fi
fi

# torch 2.13 has wheels for CPython 3.10 and later; Debian's python3 has the headers and modules that it needs.
usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }
if [[ ! -x .venv/bin/python ]] || ! .venv/bin/python -c 'import pip' 2>/dev/null; then
  python=
  for candidate in python3 /usr/bin/python3; do
    if usable "$candidate"; then
      python=$candidate
      break
    fi
  done
  [[ $python ]] || fail "no python3 of version 3.10 to 3.14 with the venv module; install one:" \
    "sudo apt-get install -y python3 python3-venv"
  rm -rf .venv
  if ! during "making .venv with $("$python" --version)" "5 s" "$python" -m venv .venv; then
    tail -n 20 "$log" >&2
    fail "$python could not make .venv; its last words are above"
  fi
fi

# Wanted versions against installed ones, without pip: that takes a second by itself.
unmet() {
  .venv/bin/python - "$torch_version" "$mode" <<'PYTHON'
import importlib.metadata, importlib.util, pathlib, sys

def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

wanted = [line.split("==") for line in pathlib.Path("tools/requirements.txt").read_text().split() if "==" in line]
if sys.argv[2] == "--demo":
    wanted = [[name, number] for name, number in wanted if name == "highspy"]
print(*[name for name, number in wanted if version(name) != number])

def is_whole_cpu_torch():
    if (version("torch") or "").split("+")[0] != sys.argv[1] or version("typing_extensions") is None:
        return False
    [folder] = importlib.util.find_spec("torch").submodule_search_locations
    return not list(pathlib.Path(folder, "lib").glob("libtorch_cuda*"))

print("" if is_whole_cpu_torch() else "torch")
PYTHON
}
{ read -r tools_unmet; read -r torch_unmet; } < <(unmet)

install() {
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@" >.venv/pip.log 2>&1
}
must_install() { # WHAT HOW_LONG, and what pip is told
  during "installing $1" "$2" install "${@:3}" && return
  tail -n 20 .venv/pip.log >&2
  fail "pip could not install ${*:3}; its last words are above"
}
is_cpu_build() {
  .venv/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is not None or torch.version.hip is not None)'
}

if [[ $torch_unmet ]]; then
  # The plain version is the CPU build on some indexes and the CUDA build on others, so it is tried last, without
  # the gigabytes of libraries that the CUDA build asks for, and looked at.
  for attempt in "torch==$torch_version+cpu" \
    "torch==$torch_version+cpu --index-url $torch_index --retries 0 --timeout 20" "torch==$torch_version"; do
    # shellcheck disable=SC2086 # an attempt is several words
    during "installing torch $torch_version, CPU build (190 MB)" "a minute" \
      install --no-deps --force-reinstall $attempt || continue
    compgen -G '.venv/lib/python3*/site-packages/torch/lib/libtorch_cuda*' >/dev/null || break
    .venv/bin/python -m pip uninstall --quiet --yes torch
  done
  .venv/bin/python -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null ||
    fail "no CPU build of torch $torch_version was found; pip's last words are in .venv/pip.log. Install it yourself:" \
      ".venv/bin/pip install torch==$torch_version+cpu --index-url $torch_index"
  must_install "what torch depends on" "20 s" "torch==$torch_version"
  if ! is_cpu_build; then
    .venv/bin/python -m pip uninstall --quiet --yes torch
    fail "pip gave a torch that is not the CPU build; it is uninstalled again. Install the right one:" \
      ".venv/bin/pip install torch==$torch_version+cpu --index-url $torch_index"
  fi
fi
if [[ $tools_unmet ]]; then
  read -ra names <<<"$tools_unmet"
  say "Python's $tools_unmet"
  mapfile -t pinned < <(grep -E "^($(tr ' ' '|' <<<"$tools_unmet"))==" tools/requirements.txt)
  must_install "${#names[@]} Python packages" "up to a minute" "${pinned[@]}"
fi
