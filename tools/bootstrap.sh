#!/usr/bin/env bash
# Creates the virtual environment and installs what one job needs. Run again, it returns at once.
#
#   tools/bootstrap.sh run     the command line, replay, database and service; no torch
#   tools/bootstrap.sh test    as well torch, triton, and the developers' tools
#
# Variables: PYTHON (python3), VENV (.venv), TORCH_VERSION (2.13.0), TRITON_VERSION (3.6.0, unless torch brings
# one), TORCH_PIP_ARGS (more words for pip when it installs torch;
# `--index-url https://download.pytorch.org/whl/cpu` takes the small CPU build).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

level=${1:-}
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
TORCH_VERSION=${TORCH_VERSION:-2.13.0}
TRITON_VERSION=${TRITON_VERSION:-3.6.0}
TORCH_PIP_ARGS=${TORCH_PIP_ARGS:-}

say() { printf '==> %s\n' "$*" >&2; }
fail() {
    printf 'error: %s\nnext: %s\n' "$1" "$2" >&2
    exit 1
}

case $level in
run | test) ;;
*) fail "bootstrap.sh takes run or test, not '$level'." "Use make sweep or make test, which call it." ;;
esac

# One that was killed while it was made has a Python and no pip.
if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
    "$PYTHON" -c 'import sys' 2>/dev/null ||
        fail "$PYTHON does not run." "Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.12 ..."
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$PYTHON is $("$PYTHON" --version 2>&1); Python 3.11 or newer is needed." \
            "Name a newer one: make PYTHON=python3.12 ..."
    "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$PYTHON has no venv module." "Install it; on Debian and Ubuntu: apt-get install python3-venv"
    say "creating the virtual environment $VENV with $("$PYTHON" --version 2>&1)"
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV"
fi
python=$VENV/bin/python

# What was installed is up to date while these words and files are the same.
wanted=$({
    echo "$TORCH_VERSION $TRITON_VERSION $TORCH_PIP_ARGS $PWD"
    cat pyproject.toml tools/bootstrap.sh
} | cksum)
for have in "$level" test; do # what tests need includes what a run needs
    stamp=$VENV/.installed-$have
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        say "$VENV is up to date"
        exit 0
    fi
done

pip() { PIP_DISABLE_PIP_VERSION_CHECK=1 "$python" -m pip --quiet --quiet "$@"; } # errors are still shown

# Dependency groups (--group) came with pip 25.1.
if ! "$python" -c 'import pip, sys; sys.exit([int(p) for p in pip.__version__.split(".")[:2]] < [25, 1])'; then
    say "upgrading pip in $VENV"
    pip install --upgrade 'pip>=25.1'
fi
if [ "$level" = run ]; then
    say "installing moe-autotune with what tuning, replay and serving need (no torch)"
    pip install -e '.[tune,server]'
else
    say "installing torch $TORCH_VERSION and triton (large; TORCH_PIP_ARGS chooses another index)"
    # shellcheck disable=SC2086 # several words are meant
    pip install "torch==$TORCH_VERSION" $TORCH_PIP_ARGS
    # A CUDA build of torch brings the triton that fits it; the CPU build brings none.
    "$python" -c 'import triton' 2>/dev/null || pip install "triton==$TRITON_VERSION"
    say "installing moe-autotune with everything, and the developers' tools"
    # Triton 3.6's interpreter reads booleans in a way that numpy 2.4 no longer allows.
    pip install -e '.[tune,gpu,server]' --group dev 'numpy<2.4'
fi
printf '%s\n' "$wanted" >"$VENV/.installed-$level"
