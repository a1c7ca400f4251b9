# The tests of scripts/bundle_dependencies.sh source this file.
bundle_script=$TESSERA_SOURCE_DIR/scripts/bundle_dependencies.sh
unset TESSERA_DEPS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
skip() { printf 'skipped: %s\n' "$*"; exit 77; }

# refused TEXT COMMAND...: checks that COMMAND fails and that its output contains TEXT.
refused() {
  local text=$1
  shift
  if "$@" > "$work/output" 2>&1; then fail "accepted: $*"; fi
  grep -qF -- "$text" "$work/output" || fail "not '$text' from $*: $(cat "$work/output")"
}

# make_bundle FOLDER: packs the dependencies into FOLDER. Skips the test if this machine does not
# have them as Debian packages.
make_bundle() {
  command -v dpkg-query > /dev/null || skip "no Debian packages to pack"
  dpkg-query -W libopenmpi-dev libdnnl-dev catch2 > /dev/null 2>&1 ||
    skip "the packages of scripts/packages.txt are not installed"
  "$bundle_script" "$1"
}

# hide_system_packages COMMAND...: runs COMMAND in a mount namespace that hides most files of the
# system's own copies of the packed libraries. Skips the test if mount namespaces are unavailable.
hide_system_packages() {
  unshare --mount --map-root-user true 2> /dev/null || skip "no mount namespaces here"
  unshare --mount --map-root-user bash -ec '
    lib=/usr/lib/$(gcc -print-multiarch)
    mkdir "$0/nothing"
    for folder in /usr/include/{CLI,fmt,spdlog,catch2,nlohmann,oneapi} $lib/{openmpi,pmix2} \
      $lib/cmake/{fmt,spdlog,dnnl} /usr/lib/cmake/Catch2 /usr/share/{cmake/CLI11,openmpi} \
      /usr/share/cmake/nlohmann_json /etc/openmpi; do
      if [[ -d $folder ]]; then mount --bind "$0/nothing" "$folder"; fi
    done
    for file in $lib/lib{mpi,open-,dnnl,fmt,spdlog,pmix,hwloc,event,jpeg,png}*.so* \
      /usr/bin/{mpi*,orte*,opal_wrapper} \
      /usr/include/{dnnl*,*-linux-gnu/jconfig.h,jerror.h,jmorecfg.h,jpeg*.h,png*.h,zlib.h,zconf.h}; do
      if [[ -f $file ]]; then mount --bind /dev/null "$file"; fi
    done
    exec "$@"' "$work" "$@"
}
