// SPDX-License-Identifier: Apache-2.0
#include "shoal/rendezvous/key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "shoal/base/error.h"

namespace shoal::rendezvous {

Bytes32 random_bytes() {
  Bytes32 bytes;
  const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
  SHOAL_CHECK(got == static_cast<ssize_t>(bytes.size()), Infeasible,
              "rendezvous: no random bytes from the kernel: ", std::strerror(errno));
  return bytes;
}

Key make_key() { return {random_bytes()}; }

int descriptor_of(const Key& key) {
  const int descriptor = memfd_create("shoal-key", MFD_CLOEXEC);
  SHOAL_CHECK(descriptor >= 0, Infeasible,
              "rendezvous: cannot make memory for the job's key: ", std::strerror(errno));
  fchmod(descriptor, 0600);
  const ssize_t wrote = pwrite(descriptor, key.bytes.data(), key.bytes.size(), 0);
  if (wrote != static_cast<ssize_t>(key.bytes.size())) {
    close(descriptor);
    fail(ErrorKind::Infeasible, "rendezvous: cannot write the job's key: ", std::strerror(errno));
  }
  return descriptor;
}

static bool read_key(int descriptor, Key& key) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && status.st_size == static_cast<off_t>(key.bytes.size()) &&
         pread(descriptor, key.bytes.data(), key.bytes.size(), 0) == static_cast<ssize_t>(key.bytes.size());
}

Key inherited_key(int descriptor) {
  Key key;
  SHOAL_CHECK(read_key(descriptor, key), InvalidInput, "rendezvous: descriptor ", descriptor,
              " is not a job's key that was inherited; was it closed between shoal run and the program?");
  return key;
}

void write_key_file(const std::filesystem::path& path, const Key& key) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  SHOAL_CHECK(descriptor >= 0, InvalidInput, "rendezvous: cannot make the key file ", path.string(), ": ",
              std::strerror(errno));
  const ssize_t wrote = write(descriptor, key.bytes.data(), key.bytes.size());
  const int error = errno;
  close(descriptor);
  SHOAL_CHECK(wrote == static_cast<ssize_t>(key.bytes.size()), Infeasible,
              "rendezvous: cannot write the key file ", path.string(), ": ", std::strerror(error));
}

Key read_key_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  SHOAL_CHECK(descriptor >= 0, InvalidInput, "rendezvous: cannot read the key file ", path.string(), ": ",
              std::strerror(errno), "; make one with: head -c 32 /dev/urandom > FILE, mode 0600");
  struct stat status = {};
  fstat(descriptor, &status);
  Key key;
  const bool whole = read_key(descriptor, key);
  close(descriptor);
  SHOAL_CHECK((status.st_mode & 077) == 0 && status.st_uid == geteuid(), InvalidInput,
              "rendezvous: others can read the key file ", path.string(),
              "; it has to be this user's, with mode 0600");
  SHOAL_CHECK(whole, InvalidInput, "rendezvous: the key file ", path.string(), " has ", status.st_size,
              " bytes, wanted ", key.bytes.size(), "; make one with: head -c 32 /dev/urandom > FILE");
  return key;
}

Bytes32 proof(const Key& key, std::string_view role, std::span<const std::uint8_t> first,
              std::span<const std::uint8_t> second) {
  std::string message(role);
  message.append(reinterpret_cast<const char*>(first.data()), first.size());
  message.append(reinterpret_cast<const char*>(second.data()), second.size());
  Bytes32 digest;
  unsigned length = 0;
  const bool made = HMAC(EVP_sha256(), key.bytes.data(), static_cast<int>(key.bytes.size()),
                         reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                         digest.data(), &length) != nullptr;
  SHOAL_CHECK(made && length == digest.size(), Internal, "rendezvous: OpenSSL made no HMAC-SHA256");
  return digest;
}

bool same(const Bytes32& a, std::span<const std::uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace shoal::rendezvous
