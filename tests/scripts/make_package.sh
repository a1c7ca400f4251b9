#!/usr/bin/env bash
# Tests what scripts/make_package.sh and scripts/common.sh say about missing packages of the system.
# The scripts run with a PATH of one folder, which has links to the machine's programs. The folder
# lacks the programs with which the scripts build and install (cmake, apt-get and sudo), and those
# that the tests replace or expect to be missing.
set -euo pipefail
unset TESSERA_DEPS  # the scripts would use its libraries instead of packages
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
mkdir "$work/bin"
IFS=: read -ra folders <<< "$PATH"
for folder in "${folders[@]}"; do
  # If two folders of PATH have a program of the same name, ln keeps the link to the first one.
  ln -s "$folder"/* "$work/bin" 2> /dev/null || true
done
rm -f "$work"/bin/{cmake,apt-get,sudo,file,dpkg-shlibdeps,dpkg-query}
PATH=$work/bin
program() { printf '#!/bin/sh\n%s\n' "$2" > "$work/bin/$1"; chmod +x "$work/bin/$1"; }

# refused PACKAGES: make_package.sh must fail, and name the command that installs these packages.
refused() {
  if "$TESSERA_SOURCE_DIR/scripts/make_package.sh" "$work/packages" > "$work/output" 2>&1; then
    fail "made a package without $1"
  fi
  grep -qx "  apt-get update && apt-get install -y --no-install-recommends $1" "$work/output" ||
    fail "expected $1: $(< "$work/output")"
}
refused "file dpkg-dev"
program file :
refused dpkg-dev
rm "$work/bin/file"
program dpkg-shlibdeps :
refused file

# This stand-in for dpkg-query takes a package's states from $status, which has one word for each
# architecture for which the package is known. It prints each word in the format that its third
# argument gives.
export status
program dpkg-query 'for one in $status; do printf "$one${3#"\${db:Status-Status}"}"; done'
missing() { (. "$TESSERA_SOURCE_DIR/scripts/common.sh" && missing_packages); }
for status in installed "installed installed" "config-files installed"; do
  [[ -z $(missing) ]] || fail "missing with status $status: $(missing)"
done
for status in "" config-files "not-installed config-files"; do
  missing | grep -qx zlib1g-dev || fail "not missing with status $status: $(missing)"
done
