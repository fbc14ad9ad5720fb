// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli; RFC 3720, appendix B.4): finds every error of up to 32 bits in a row, and every other
// one but one in 2^32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shoal {

// `before`: the checksum of the bytes in front of these, so that crc32c(b, crc32c(a)) is that of a and b in a
// row.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);
std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

// The same by table: what a processor without the instruction runs.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0);

// TFRecord stores checksums in this form, so that a checksum over bytes that hold checksums is no fixed
// point.
constexpr std::uint32_t masked_crc32c(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

std::string hex(std::uint32_t number);  // eight lower-case digits

}  // namespace shoal
