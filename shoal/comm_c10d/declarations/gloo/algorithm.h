// SPDX-License-Identifier: Apache-2.0
// Stands for Gloo's header of this name, which LibTorch's packages leave out though their headers include it.
#pragma once
