# Sourced by run.sh, test.sh, .ci/run and scripts in scripts/ and bench/: goes to the root of the
# checkout, sets up MPI, and defines the steps that these scripts share. With TESSERA_DEPS=FOLDER
# libraries come from that folder, and nothing is installed.
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
set -a
. scripts/mpi.env
set +a
cores=$(nproc)

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Switches to the libraries in the folder TESSERA_DEPS, which scripts/bundle_dependencies.sh made.
use_dependencies() {
  local tool glibc
  TESSERA_DEPS=$(cd "$called_from" && realpath -m -- "$TESSERA_DEPS")
  [[ -f $TESSERA_DEPS/env.sh ]] || die "TESSERA_DEPS is $TESSERA_DEPS, expected a folder that \
scripts/bundle_dependencies.sh made"
  # mpicc prints its flags without quotes, so a space in the path would split a flag. A colon would
  # split a search path.
  [[ $TESSERA_DEPS != *[[:space:]:]* ]] ||
    die "TESSERA_DEPS is '$TESSERA_DEPS', expected a path without spaces and colons: move it"
  for tool in g++ cmake ninja python3; do
    command -v "$tool" > /dev/null || die "$tool is missing, and TESSERA_DEPS does not contain it"
  done
  glibc=$(printf '%s\n' "$(< "$TESSERA_DEPS/glibc")" "$(getconf GNU_LIBC_VERSION)" |
    sort -V | head -n 1)
  [[ $glibc == "$(< "$TESSERA_DEPS/glibc")" ]] ||
    die "$TESSERA_DEPS needs $(< "$TESSERA_DEPS/glibc"), but this machine has $glibc"
  . "$TESSERA_DEPS/env.sh"
}
if [[ -n ${TESSERA_DEPS:-} ]]; then use_dependencies; fi

# quietly LOG COMMAND...: writes the output to build/LOG. If the command fails, shows the last lines
# and ends the script.
quietly() {
  local log=build/$1
  shift
  mkdir -p build
  if ! "$@" > "$log" 2>&1 < /dev/null; then
    tail -n 40 "$log" >&2
    die "a command failed, its whole output is in $log: $*"
  fi
}

missing_packages() {
  local package
  for package in $(grep -v '^#' scripts/packages.txt); do
    # dpkg-query prints a line for each architecture for which the package is known.
    if ! dpkg-query -W -f '${db:Status-Status}\n' "$package" 2> /dev/null |
      grep -x installed > /dev/null; then
      printf '%s\n' "$package"
    fi
  done
}

# True if sudo works. Asks for the password if there is a terminal.
can_sudo() {
  command -v sudo > /dev/null || return 1
  sudo -n true 2> /dev/null || { [[ -t 0 ]] && sudo -v; }
}

# Installs the packages of scripts/packages.txt that the machine lacks, as root or by sudo. Does
# nothing if TESSERA_DEPS is set.
install_packages() {
  if [[ -n ${TESSERA_DEPS:-} ]]; then return; fi
  if ! command -v dpkg-query > /dev/null; then
    say "not Debian or Ubuntu: expecting the equivalents of scripts/packages.txt to be installed"
    return
  fi
  local missing as_root=()
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} -eq 0 ]]; then return; fi

  local install=(apt-get install -y --no-install-recommends "${missing[@]}")
  if [[ $(id -u) -ne 0 ]]; then
    can_sudo || die "packages are missing, and only root may install them:
  apt-get update && ${install[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  quietly apt-update.log "${as_root[@]}" apt-get update
  quietly apt-install.log "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}"
}

# The CMake variable TESSERA_CUDA of the release build: AUTO, ON or OFF (cmake/cuda.cmake). If a
# script sets `cuda` to the empty string, build/release keeps the value of its last configuration.
cuda=${TESSERA_CUDA:-AUTO}

has_gpu() {
  command -v nvidia-smi > /dev/null && nvidia-smi -L 2> /dev/null | grep '^GPU' > /dev/null
}

# build PRESET [TARGET...]: configures and compiles. Without targets, builds the preset's targets.
build() {
  local preset=$1 flags=() settings=()
  shift
  if [[ $preset == release && -n $cuda ]]; then settings=(-D "TESSERA_CUDA=$cuda"); fi
  say "building build/$preset (the first time takes minutes)"
  quietly "configure-$preset.log" cmake --preset "$preset" "${settings[@]}"
  # Print which CUDA the build has, or why it has none.
  sed -n 's/^-- \(With\(out\)\? CUDA.*\)/== \1/p' "build/configure-$preset.log"
  if [[ $# -gt 0 ]]; then flags+=(--target "$@"); fi
  if [[ ! -t 1 ]]; then flags+=(-- --quiet); fi
  cmake --build --preset "$preset" --parallel "$cores" "${flags[@]}"
}
