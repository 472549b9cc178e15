#!/bin/sh
# Installs what potluck needs to build and run on Debian 12 and Ubuntu 24.04 (and their relatives).
#
#   deploy/install-deps.sh            what `make`, `make test` and `make demo` need
#   deploy/install-deps.sh --dev      also what `make lint`, `make tsan`, `make fuzz-smoke` and clang builds need
#   deploy/install-deps.sh --check    installs nothing: lists what is missing and says so by its exit status
set -eu

packages="build-essential pkg-config openmpi-bin libopenmpi-dev libucx-dev libprotobuf-c-dev protobuf-c-compiler
libjansson-dev libxxhash-dev libhwloc-dev libinih-dev libcmocka-dev libsimde-dev liburing-dev"
dev_packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static clang libomp-dev clang-format clang-tidy cppcheck shellcheck codespell gcovr"

check=no
dev=no
for argument in "$@"; do
    case $argument in
    --check) check=yes ;;
    --dev) dev=yes ;;
    *)
        echo "install-deps.sh: unknown argument $argument (--check and --dev are known)" >&2
        exit 2
        ;;
    esac
done

if ! command -v dpkg-query >/dev/null; then
    echo "install-deps.sh: this is no Debian or Ubuntu system; install the equivalents of:" >&2
    echo "$packages" >&2
    # Elsewhere whoever has the tools may go on: the build itself says what it lacks.
    command -v mpicc >/dev/null && command -v protoc-c >/dev/null && exit 0
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
as_root=
[ "$(id -u)" -eq 0 ] || as_root=sudo

if [ $dev = yes ]; then
    packages="$packages $dev_packages"
    # The sanitizers' and libFuzzer's runtime is named after the version that `clang` stands for: 14, 18, ...
    clang_version() {
        apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -1
    }
    version=$(clang_version)
    if [ -z "$version" ] && [ $check = no ]; then # a fresh container has no package lists yet
        $as_root apt-get update -qq >"$log" 2>&1 || true
        version=$(clang_version)
    fi
    [ -z "$version" ] || packages="$packages libclang-rt-$version-dev"
fi

missing=
# shellcheck disable=SC2086  # one word a package
installed=" $(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $packages 2>/dev/null |
    sed -n 's/^installed //p' | tr '\n' ' ') "
for package in $packages; do
    case $installed in
    *" $package "*) ;;
    *) missing="$missing $package" ;;
    esac
done

[ -n "$missing" ] || exit 0
if [ $check = yes ]; then
    echo "missing packages:$missing"
    exit 1
fi

if [ -n "$as_root" ] && ! command -v sudo >/dev/null; then
    echo "install-deps.sh: packages are missing, and installing them needs root (there is no sudo). As root, run:" >&2
    echo "  apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
echo "installing packages:$missing"
# shellcheck disable=SC2086
install_missing() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >"$log" 2>&1
}
# The package lists may be old or absent (a fresh container); they are renewed only when the first try fails.
if ! install_missing; then
    echo "renewing the package lists"
    if ! { $as_root apt-get update -qq >"$log" 2>&1 && install_missing; }; then
        tail -20 "$log" >&2
        echo "install-deps.sh: apt-get could not install the packages named above; its last lines say why" >&2
        exit 1
    fi
fi
echo "all packages are installed"
