#!/usr/bin/env bash
# Checks CUDA against the CPU on a machine with an NVIDIA GPU, with programs built elsewhere.
#
#   tests/gpu.sh build    here, without a GPU: builds, strips and packs them into target/gpu.tar.gz
#   tests/gpu.sh run      there, with that file and the repository's: runs them; needs no Rust
#
# `run` does what a GPU is for: doctor (its largest error against the CPU in 64 bits is judged), the
# behaviour tests of the `cuda` accelerator, and a short MNIST with its accuracy.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=target/gpu
features="flex ndarray fusion autotune progress yaml burn-train cuda"

build() {
    cargo build --locked --release --no-default-features --features "$features" \
        --bin firebox --example mnist
    local test
    test=$(cargo rustc --locked --release --no-default-features --features "$features" \
        --test it --message-format json-render-diagnostics -- --cfg cuda_tests |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | grep /it-)
    rm -rf "$programs" && mkdir -p "$programs"
    strip -o "$programs/firebox" target/release/firebox
    strip -o "$programs/mnist" target/release/examples/mnist
    strip -o "$programs/it" "$test"
    tar -C "$programs" -czf "$programs.tar.gz" firebox mnist it
    du -h "$programs.tar.gz"
}

run() {
    mkdir -p "$programs" && tar -C "$programs" -xzf "$programs.tar.gz"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    echo "==> doctor"
    "$programs/firebox" doctor
    echo "==> behaviour tests on cuda"
    "$programs/it" cuda:: --test-threads 4
    echo "==> MNIST, one epoch, on cuda and on the CPU"
    local runs accelerator
    runs=$(mktemp -d)
    for accelerator in cuda flex; do
        "$programs/mnist" --accelerator "$accelerator" --max-epochs 1 --progress off --json \
            --run-dir "$runs" | tail -n 1
    done
}

case "${1:-}" in
    build) build ;;
    run) run ;;
    *) echo "usage: tests/gpu.sh build|run" >&2; exit 2 ;;
esac
