#!/usr/bin/env bash
# In builds without CUDA, core/no_cuda and dist/nccl/no_cuda must define every function of core/cuda
# and dist/nccl/cuda that other files call. A build with CUDA does not use the no_cuda folders, so
# it links even if they lack a definition. This test finds such a gap in a build with CUDA. It
# compiles the no_cuda folders and compares symbols: if a source file that is part of every build
# needs a symbol that the CUDA folders define, a build without CUDA must define this symbol, too.
set -euo pipefail
cd "$TESSERA_SOURCE_DIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mapfile -t objects < <(find "$TESSERA_BUILD_DIR/CMakeFiles" -name '*.o')
cuda=() common=()
for object in "${objects[@]}"; do
  source=${object##*.dir/}
  source=${source%.o}
  [[ -e $source ]] || continue  # an object whose source was moved or deleted
  case $source in
    */cuda/* | *.cu) cuda+=("$object") ;;
    emulated/*) ;;
    *) common+=("$object") ;;
  esac
done
if [[ ${#cuda[@]} -eq 0 ]]; then
  echo "skipped: this build has no CUDA, and its link has shown what is asked here"
  exit 77
fi

for source in core/no_cuda/*.cpp dist/nccl/no_cuda/*.cpp; do
  "$CXX" -std=c++20 -O0 -DFMT_SHARED -I. -c "$source" -o "$work/$(echo "$source" | tr / _).o"
done
# symbols FLAG FILE...: lists the symbols of namespace tessera that the objects need
# (--undefined-only) or define (--defined-only). Leaves out the weak symbols (W, V) of headers.
symbols() {
  local flag=$1
  shift
  nm -C --format=posix "$flag" "$@" 2> /dev/null | sed -nE 's/^(tessera::.*) [TDBRU]( .*)?$/\1/p' |
    sort -u
}
symbols --undefined-only "${common[@]}" > "$work/needed"
# Launchers are left out, because only builds with CUDA call them (core/dispatch.h). grep recognises
# a launcher by its first argument, a context.
symbols --defined-only "${cuda[@]}" | grep -v '(tessera::Context const&' > "$work/of_cuda"
symbols --defined-only "$work"/*.o "${common[@]}" > "$work/without_cuda"
comm -12 "$work/needed" "$work/of_cuda" > "$work/wanted"
[[ $(wc -l < "$work/wanted") -ge 20 ]] ||
  { echo "only these are wanted of CUDA, expected dozens:" >&2; cat "$work/wanted" >&2; exit 1; }
comm -23 "$work/wanted" "$work/without_cuda" > "$work/missing"
if [[ -s $work/missing ]]; then
  echo "a build without CUDA lacks:" >&2
  cat "$work/missing" >&2
  exit 1
fi
echo "$(wc -l < "$work/wanted") functions of CUDA have a twin without it"
