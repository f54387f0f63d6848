#!/bin/sh
# Say what is missing before anything slow starts. Usage: check_machine.sh PYTHON
python=$1
missing=0

say() {
    echo "setup: $1" >&2
    missing=1
}

if ! command -v "$python" >/dev/null 2>&1; then
    say "there is no $python: install Python 3.10 or newer (Debian, Ubuntu: sudo apt-get install python3 python3-venv)"
else
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        say "$("$python" --version) is too old: install Python 3.10 or newer and run make PYTHON=python3.11 setup"
    fi
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        say "$python cannot make virtual environments: sudo apt-get install python3-venv (Debian, Ubuntu)"
    fi
fi

if ! { [ -n "$CXX" ] && command -v "${CXX%% *}" || command -v g++ || command -v c++ || command -v clang++; } >/dev/null 2>&1; then
    say "there is no C++ compiler, which the device 'cpu' needs: sudo apt-get install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)"
fi

exit $missing
