#!/usr/bin/env bash
# Makes a Debian package and an archive of Tessera with its programs, library and course. The code
# is compiled without CUDA, and for x86-64-v3 (AVX2), so that it also runs on other machines.
#
# Usage: scripts/make_package.sh [FOLDER]. The files go to FOLDER (default: build/package).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [[ $# -gt 1 || ${1:-} == -* ]]; then die "usage: scripts/make_package.sh [FOLDER]"; fi
target=$PWD/build/package
if [[ $# -eq 1 ]]; then target=$(cd "$called_from" && realpath -m -- "$1"); fi
# CPack runs the programs `file` and `dpkg-shlibdeps` to find the libraries that the package depends
# on. Without dpkg-shlibdeps, CPack leaves these dependencies out, and does not fail.
missing=()
command -v file > /dev/null || missing+=(file)
command -v dpkg-shlibdeps > /dev/null || missing+=(dpkg-dev)
[[ ${#missing[@]} -eq 0 ]] || die "packages are missing with which CPack finds dependencies:
  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
install_packages
build package
mkdir -p "$target"
rm -f build/package/packages/tessera*.{deb,tar.gz}  # packages of an earlier version
quietly cpack.log cpack --config build/package/CPackConfig.cmake -B "$PWD/build/package/packages"
for file in build/package/packages/tessera*.{deb,tar.gz}; do
  if [[ ! $file -ef $target/${file##*/} ]]; then cp "$file" "$target"; fi
  say "made $target/${file##*/}"
done
