#!/bin/sh
# Every system call that this machine's headers know, as {"name", number}, lines of unit_launcher.
#   usage: syscall_numbers.sh COMPILER
set -eu
echo '#include <sys/syscall.h>' | "$1" -x c++ -dM -E - | sed -n 's/^#define __NR_\([a-z0-9_]*\) .*/{"\1", __NR_\1},/p'
