#!/usr/bin/env bash
# The exactness tests of the kernels as a static aarch64 program under qemu: NEON against the generic table, bit for bit.
# Only kernels/ and what it needs of common/ is built; the rest of the program has libraries that a cross compiler lacks.
set -eu
cd "$(dirname "$0")/../.."

cc=aarch64-linux-gnu-gcc
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || true
if ! command -v $cc >/dev/null || [ -z "$qemu" ]; then
    echo "no aarch64 cross compiler or no qemu-user: deploy/install-deps.sh --dev installs both"
    exit 77
fi
[ "${MODE:-release}" = release ] || { echo "the cross compiler's program is the same in every mode"; exit 77; }

out=${BUILD:-build/release}/cross
mkdir -p "$out"
flags='-std=gnu11 -D_GNU_SOURCE= -O1 -Wall -Wextra -Werror -ffp-contract=off -fno-fast-math -pthread -I. -Itests/cross'
objects=
build() { # SOURCE [FLAG...]
    local object=$out/${1//\//_}.o
    # shellcheck disable=SC2086
    $cc $flags "${@:2}" -c "$1" -o "$object"
    objects="$objects $object"
}
for source in common/{mem,status,team,float_mode}.c kernels/{cpu,kernels,format,pack,quantize,stored,unpack,convert,linear,ffn,math,kernels_generic}.c; do
    build "$source"
done
build kernels/kernels_neon.c -march=armv8.2-a+dotprod
build tests/test_exact.c
# shellcheck disable=SC2086
$cc -static -pthread $objects -lm -o "$out/test_exact_neon"
"$qemu" "$out/test_exact_neon"
