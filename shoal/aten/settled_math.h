// SPDX-License-Identifier: Apache-2.0
// Vector math whose first call has been made.
#pragma once

namespace shoal::aten {

// Calls each function of MKL's vector math that ATen uses, once in a process, and returns when that is done. Where
// threads make the first call at the same moment, some of them compute it in a lower accuracy: square roots were
// off by 1e-4 in float32 and 3e-11 in float64 in one process of a hundred (LibTorch 2.13, AVX-512). Any thread.
void settle_math();

}  // namespace shoal::aten
