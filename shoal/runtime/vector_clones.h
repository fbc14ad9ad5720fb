// SPDX-License-Identifier: Apache-2.0
#pragma once

// One copy for each instruction set, the best taken when the program is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define SHOAL_VECTOR_CLONES __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define SHOAL_VECTOR_CLONES
#endif
