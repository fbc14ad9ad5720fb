// SPDX-License-Identifier: Apache-2.0
#include "shoal/rendezvous/wire.h"

#include <cstring>

namespace shoal::rendezvous::wire {

static void append(std::string& bytes, std::uint64_t number) {
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(number >> (8 * i)));
}

static void append(std::string& bytes, std::string_view text) {
  append(bytes, static_cast<std::uint64_t>(text.size()));
  bytes.append(text);
}

static std::uint64_t number_from(std::string_view& bytes) {
  SHOAL_CHECK(bytes.size() >= 8, Corrupt, "rendezvous: a message is cut short");
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < 8; ++i)
    number |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(bytes[i])) << (8 * i);
  bytes.remove_prefix(8);
  return number;
}

static std::string text_from(std::string_view& bytes) {
  const std::uint64_t size = number_from(bytes);
  SHOAL_CHECK(size <= bytes.size(), Corrupt, "rendezvous: a message is cut short");
  std::string text(bytes.substr(0, size));
  bytes.remove_prefix(size);
  return text;
}

static std::uint8_t byte_from(std::string_view& bytes) {
  SHOAL_CHECK(!bytes.empty(), Corrupt, "rendezvous: a message is cut short");
  const auto byte = static_cast<std::uint8_t>(bytes.front());
  bytes.remove_prefix(1);
  return byte;
}

std::string to_bytes(const Request& request) {
  std::string bytes(1, static_cast<char>(request.op));
  append(bytes, request.epoch);
  append(bytes, static_cast<std::uint64_t>(request.number));
  append(bytes, request.key);
  append(bytes, request.value);
  append(bytes, request.expected);
  return bytes;
}

Request request_of(std::string_view bytes) {
  Request request;
  const std::uint8_t op = byte_from(bytes);
  SHOAL_CHECK(op <= static_cast<std::uint8_t>(kLastOp), Corrupt, "rendezvous: there is no operation ",
              int{op});
  request.op = static_cast<Op>(op);
  request.epoch = number_from(bytes);
  request.number = static_cast<std::int64_t>(number_from(bytes));
  request.key = text_from(bytes);
  request.value = text_from(bytes);
  request.expected = text_from(bytes);
  SHOAL_CHECK(bytes.empty(), Corrupt, "rendezvous: a message has ", bytes.size(), " bytes too many");
  return request;
}

std::string to_bytes(const Reply& reply) {
  std::string bytes = {static_cast<char>(reply.status), static_cast<char>(reply.kind)};
  append(bytes, static_cast<std::uint64_t>(reply.number));
  append(bytes, reply.text);
  return bytes;
}

Reply reply_of(std::string_view bytes) {
  Reply reply;
  const std::uint8_t status = byte_from(bytes), kind = byte_from(bytes);
  SHOAL_CHECK(status <= static_cast<std::uint8_t>(Status::Failed) &&
                  kind <= static_cast<std::uint8_t>(ErrorKind::Internal),
              Corrupt, "rendezvous: there is no reply ", int{status}, " ", int{kind});
  reply.status = static_cast<Status>(status);
  reply.kind = static_cast<ErrorKind>(kind);
  reply.number = static_cast<std::int64_t>(number_from(bytes));
  reply.text = text_from(bytes);
  SHOAL_CHECK(bytes.empty(), Corrupt, "rendezvous: a message has ", bytes.size(), " bytes too many");
  return reply;
}

std::string with_length(std::string_view bytes) {
  const auto size = static_cast<std::uint32_t>(bytes.size());
  std::string all;
  for (int i = 0; i < 4; ++i) all.push_back(static_cast<char>(size >> (8 * i)));
  return all.append(bytes);
}

std::uint32_t length_of(std::string_view four_bytes) {
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < 4; ++i)
    size |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(four_bytes[i])) << (8 * i);
  return size;
}

}  // namespace shoal::rendezvous::wire
