#!/usr/bin/env bash
# Packs the installed libraries that Tessera needs into one folder: Open MPI, oneDNN, Catch2, CLI11,
# fmt, spdlog, nlohmann json, xxHash, libjpeg, libpng and zlib. Compilers and build tools are not
# packed. The folder may be copied to any path without spaces and colons.
#
#   scripts/bundle_dependencies.sh FOLDER    on Debian or Ubuntu; installs what is missing
#   TESSERA_DEPS=FOLDER ./run.sh             on a machine without a package archive
#   TESSERA_DEPS=FOLDER ./test.sh            the same, for the tests
#
# The machine that uses the folder must have the same kind of processor as the machine that packs
# it, and a C library that is not older. It also needs g++, cmake, ninja and python3. FOLDER/env.sh
# sets what a shell needs to use the folder. docs/cuda.md has more.
set -euo pipefail
shopt -s inherit_errexit
unset TESSERA_DEPS  # pack what this machine has installed
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[[ $# -eq 1 && -n $1 ]] || die "usage: scripts/bundle_dependencies.sh FOLDER"
folder=$(cd "$called_from" && realpath -m -- "$1")
[[ ! -e $folder || -z $(ls -A "$folder") ]] || die "$folder is not empty, expected a new folder"
command -v dpkg-query > /dev/null || die "this is not Debian or Ubuntu, whose packages are packed"
install_packages
[[ $(mpirun --version) == *"(Open MPI) 4."* ]] ||
  die "what mpirun names is not Open MPI 4, whose layout is packed: $(mpirun --version | head -n 1)"

triplet=$(gcc -print-multiarch)
limit_bytes=$((48 << 20))
tools='^(cmake|g\+\+|ninja-build|python3)$'
# missing_libraries ignores these libraries, because every system with a C++ compiler has its own.
base='/(ld-linux.*|lib(c|m|dl|rt|pthread|z|gcc_s|stdc\+\+|gomp))\.so'
# These files are left out: bindings of other languages, transports of special networks (most of
# which Debian's configuration disables anyway), and the parts of Open MPI for OpenSHMEM, ROMIO,
# monitoring and debuggers. Together they would pull in most of the libraries that Open MPI can use.
unwanted='ucx|ofi|psm|openib|verbs|netlink|flux|oshmem|spml|sshmem|scoll|memheap|mca_atomic'
unwanted+='|java|mpifh|usempi|mpi_cxx|/fortran|ompitrace|monitoring|dbg_msgq|romio'
# Static libraries beside a shared library are left out too.
unwanted+='|lib(jpeg|png|png16|xxhash|z)\.a$'

files_of() { dpkg-query -L "$@" | grep -vE "$unwanted"; }

# Lists the files to copy: those of the packages in scripts/packages.txt, and those of Open MPI.
wanted_files() {
  local packages plugins
  mapfile -t packages < <(grep -vE "^#|$tools" scripts/packages.txt)
  plugins=$(dpkg-query -S "$(realpath "/usr/lib/$triplet/libmpi.so.40")" | cut -d: -f1)
  files_of "${packages[@]}" |
    grep -E '^/usr/(include|share/cmake|lib)/' | grep -vE '/openmpi/|pkgconfig'
  # libjpeg-dev has no headers; it only depends on the package that has jpeglib.h.
  files_of "$(dpkg-query -S '*/jpeglib.h' | head -n 1 | cut -d: -f1)" |
    grep -E '^/usr/(include|lib)/' | grep -vE 'pkgconfig'
  files_of libopenmpi-dev |
    grep -E '/openmpi/(include/(mpi[^/]*\.h|openmpi/mpiext/.*)|lib/libmpi\.so)$'
  files_of "$plugins" | grep -E '^/usr/lib/.*\.so'
  files_of openmpi-common | grep -E '/share/openmpi/(help-.*|mpicc-wrapper-data\.txt)$'
  printf '%s\n' /etc/openmpi/openmpi-mca-params.conf /usr/bin/{orterun,orted,opal_wrapper}
  files_of "$(dpkg-query -S '*/libpmix.so.2' | head -n 1 | cut -d: -f1)" |
    grep -E '^/usr/lib/.*pmix.*(\.so|\.conf|help-.*\.txt)'
}

# Lists the files that the folder lacks: targets of its links, and libraries that its programs and
# libraries load.
missing_libraries() {
  local link library
  find "$folder/lib/$triplet" -xtype l | while read -r link; do
    printf '%s\n' "/usr/lib/$triplet/$(readlink "$link")"
  done
  find "$folder" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec ldd {} + 2> /dev/null |
    awk '$2 == "=>" && $3 ~ /^\// {print $3}' | grep -vE "$base" | sort -u |
    while read -r library; do
      library=/usr/lib/$triplet/${library##*/}
      [[ -e ${library/#\/usr/"$folder"} ]] || printf '%s\n' "$library"
    done
}

# take FILE...: copies files into the folder, without /usr in their paths. Links stay links. A link
# to an absolute path (Debian's libz.so) becomes a link to the file name in the same folder. Headers
# in include/$triplet go to include, because compilers search include/$triplet only in /usr.
take() {
  local file to target
  for file; do
    if [[ -d $file && ! -L $file ]]; then continue; fi
    to=$folder/${file#/}
    to=${to/#"$folder"\/usr/"$folder"}
    if [[ ${file%/*} == "/usr/include/$triplet" && $file == *.h ]]; then
      to=$folder/include/${file##*/}
    fi
    mkdir -p "${to%/*}"
    cp -P --no-preserve=ownership "$file" "$to"
    target=$(readlink "$file") || continue
    if [[ $target == /* ]]; then ln -sfn "${target##*/}" "$to"; fi
  done
}

say "packing $folder"
mkdir -p "$folder"
files=$(wanted_files | sort -u)
mapfile -t files <<< "$files"
take "${files[@]}"
# mpirun, mpiexec and mpicc are created here. On Debian they are links of the alternatives system,
# whose targets differ from machine to machine.
ln -sfn orterun "$folder/bin/mpirun"
ln -sfn orterun "$folder/bin/mpiexec"
ln -sfn opal_wrapper "$folder/bin/mpicc"
mapfile -t files < <(missing_libraries)
while [[ ${#files[@]} -gt 0 ]]; do
  take "${files[@]}"
  mapfile -t files < <(missing_libraries)
done

# oneDNN's library is two thirds of the folder. gzip makes the library three times smaller. env.sh
# unpacks it.
gzip -9 "$folder/lib/$triplet"/libdnnl.so.*.*

cat > "$folder/env.sh" << END
# Sourced by run.sh and test.sh if TESSERA_DEPS is this folder, or by hand: . FOLDER/env.sh
tessera_deps=\$(cd "\$(dirname "\${BASH_SOURCE[0]}")" && pwd)
for packed in "\$tessera_deps/lib/$triplet"/*.gz; do
  [[ -e \${packed%.gz} ]] && continue
  gzip -dc "\$packed" > "\${packed%.gz}.\$\$" || return 1
  mv "\${packed%.gz}.\$\$" "\${packed%.gz}"  # atomic, as another shell may unpack it too
done
export CMAKE_PREFIX_PATH=\$tessera_deps\${CMAKE_PREFIX_PATH:+:\$CMAKE_PREFIX_PATH}
export PATH=\$tessera_deps/bin:\$PATH
export LD_LIBRARY_PATH=\$tessera_deps/lib/$triplet\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
# Open MPI and its PMIx look here for plugins and texts, instead of in /usr.
export OPAL_PREFIX=\$tessera_deps OPAL_SYSCONFDIR=\$tessera_deps/etc/openmpi
export PMIX_PREFIX=\$tessera_deps/lib/$triplet/pmix2
export PMIX_LIBDIR=\$PMIX_PREFIX/lib PMIX_DATADIR=\$PMIX_PREFIX/share
# Without ssh and rsh, mpirun must be told to stay on this machine.
command -v ssh rsh > /dev/null || export OMPI_MCA_plm=isolated
END
getconf GNU_LIBC_VERSION > "$folder/glibc"

bytes=$(du -sb --apparent-size "$folder" | cut -f1)
say "$folder has $((bytes >> 20)) MiB"
[[ $bytes -le $limit_bytes ]] || die "that is more than $((limit_bytes >> 20)) MiB"
