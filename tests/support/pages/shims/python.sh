#!/bin/bash
# `python` of a page: that of the tests, but for the two things that would leave the machine or
# take long. A venv has all that the tests' own has.
case "$1 $2" in
"-m pip") exec "$PAGE_BIN/pip" "${@:3}" ;;
"-m venv")
    mkdir -p "$3/bin"
    ln -sf "$PAGE_VENV"/* "$PAGE_BIN"/* "$3/bin"
    echo "# nothing to do" >"$3/bin/activate"
    ;;
*) exec "$PAGE_PYTHON" "$@" ;;
esac
