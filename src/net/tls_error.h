// What OpenSSL complains about, as text.
#pragma once

#include <openssl/err.h>

#include <string>

namespace gradwire {

/// The newest complaint of this thread; empties the list, which the host program shares with us.
inline std::string take_tls_error() {
  const char* data = nullptr;
  int flags = 0;
  const unsigned long code = ERR_peek_last_error_all(nullptr, nullptr, nullptr, &data, &flags);
  const char* const reason = ERR_reason_error_string(code);
  std::string text = reason != nullptr ? reason : "no reason given";
  if (data != nullptr && (flags & ERR_TXT_STRING) != 0 && *data != '\0') {
    text += std::string(" (") + data + ")";
  }
  ERR_clear_error();
  return text;
}

}  // namespace gradwire
