// cpp/base/sodium.hpp: the functions of libsodium that the tcp link calls, as a table of pointers.
//
// The NIC neither links nor contains cryptography. The host program calls sodium_init(), fills the table from its
// libsodium (the binding: from PyNaCl's, src/weft/_sodium.py) and keeps the library loaded while a NIC uses the table.
// The parameters are those of libsodium's C interface; kNames lists the C names in the order of the members.
#pragma once

#include <array>
#include <cstddef>

namespace weft {

struct Sodium {
  using Byte = unsigned char;
  using Length = unsigned long long;

  int (*aegis128l_encrypt)(Byte* cipher, Length* cipher_length, const Byte* message, Length message_length,
                           const Byte* clear, Length clear_length, const Byte* unused, const Byte* nonce,
                           const Byte* key) = nullptr;
  int (*aegis128l_decrypt)(Byte* message, Length* message_length, Byte* unused, const Byte* cipher,
                           Length cipher_length, const Byte* clear, Length clear_length, const Byte* nonce,
                           const Byte* key) = nullptr;
  int (*point_from_uniform)(Byte* point, const Byte* uniform) = nullptr;
  int (*point_multiply)(Byte* product, const Byte* scalar, const Byte* point) = nullptr;
  int (*blake2b)(Byte* out, size_t out_length, const Byte* in, Length in_length, const Byte* key, size_t key_length,
                 const Byte* salt, const Byte* personal) = nullptr;
  int (*compare)(const void* a, const void* b, size_t length) = nullptr;  // 0: equal; in constant time
  void (*wipe)(void* bytes, size_t length) = nullptr;

  static constexpr std::array<const char*, 7> kNames = {
      "crypto_aead_aegis128l_encrypt",
      "crypto_aead_aegis128l_decrypt",
      "crypto_core_ed25519_from_uniform",
      "crypto_scalarmult_ed25519",
      "crypto_generichash_blake2b_salt_personal",
      "sodium_memcmp",
      "sodium_memzero",
  };

  // `addresses`: addresses of the functions in kNames, in that order, never null.
  static Sodium from(const std::array<void*, kNames.size()>& addresses) noexcept {
    Sodium s;
    size_t i = 0;
    const auto take = [&]<typename Function>(Function*& to) { to = reinterpret_cast<Function*>(addresses[i++]); };
    take(s.aegis128l_encrypt);
    take(s.aegis128l_decrypt);
    take(s.point_from_uniform);
    take(s.point_multiply);
    take(s.blake2b);
    take(s.compare);
    take(s.wipe);
    return s;
  }
};

}  // namespace weft
