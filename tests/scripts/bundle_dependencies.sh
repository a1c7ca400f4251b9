#!/usr/bin/env bash
# Tests the folder that scripts/bundle_dependencies.sh packs. The folder must be complete, have at
# most 48 MiB, and work after it was moved. Wrong values of TESSERA_DEPS must be refused.
# bundle_build.sh tests that Tessera builds with only this folder.
set -euo pipefail
. "$TESSERA_SOURCE_DIR/tests/scripts/bundle.bash"

make_bundle "$work/made"
refused "is not empty" "$bundle_script" "$work/made"
refused "usage: " "$bundle_script"
bytes=$(du -sb --apparent-size "$work/made" | cut -f1)
[[ $bytes -le $((48 << 20)) ]] || fail "the folder has $bytes bytes"
for i in 1 2; do  # several users may source env.sh at the same time
  bash -ec '. "$0/env.sh"' "$work/made" &
done
wait
dangling=$(find "$work/made" -xtype l)
[[ -z $dangling ]] || fail "links to nothing: $dangling"
left=$(find "$work/made" -name '*.so.*.*.[0-9]*' -newer "$work/made/env.sh")
[[ -z $left ]] || fail "half a library: $left"

deps() { TESSERA_DEPS=$1 bash -c ". '$TESSERA_SOURCE_DIR/scripts/common.sh'"; }
refused "expected a folder that scripts/bundle_dependencies.sh made" deps "$work"
mkdir "$work/two words"
touch "$work/two words/env.sh"
refused "expected a path without spaces" deps "$work/two words"

mv "$work/made" "$work/moved"
printf 'glibc 99.1\n' > "$work/glibc"
cp "$work/moved/glibc" "$work/kept"
cp "$work/glibc" "$work/moved/glibc"
refused "needs glibc 99.1, but this machine has glibc" deps "$work/moved"
mv "$work/kept" "$work/moved/glibc"

# Hides the system's Open MPI. The folder's Open MPI must run.
cd "$work"
cat > program.c <<'CODE'
#include <mpi.h>
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 1, sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return sum == 2 ? 0 : 1;
}
CODE
hide_system_packages bash -ec '
  TESSERA_DEPS=$1/moved . "$TESSERA_SOURCE_DIR/scripts/common.sh"
  cd "$1"
  mpicc program.c -o program
  if ldd program "$1"/moved/bin/orterun |
    grep -E "not found|lib(mpi|open-|hwloc|event).* => /(usr|lib)"; then exit 1; fi
  mpirun -n 2 ./program < /dev/null > output 2>&1 || { cat output; exit 1; }
  if [[ -s output ]]; then  # Open MPI prints a warning if a plugin or a help text is missing
    cat output
    exit 1
  fi' - "$work"
