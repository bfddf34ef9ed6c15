#include "rendezvous/store.h"

#include <fmt/format.h>

#include <algorithm>

#include "gradwire/error.h"

namespace gradwire {
namespace {

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         std::stoi(std::string(text)) > 0 && std::stoi(std::string(text)) < 65536;
}

}  // namespace

void check_store(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const bool known = text == "mpi" || (text.starts_with("file:") && text.size() > 5) ||
                     (text.starts_with("tcp:") && colon > 4 && is_port(text.substr(colon + 1)));
  if (known) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("'{}' is no store; take file:DIRECTORY, tcp:HOST:PORT or mpi", text));
}

std::unique_ptr<Store> open_store(std::string_view text, std::uint32_t rank, Deadline deadline,
                                  const std::string& secret) {
  check_store(text);
  if (text == "mpi") return open_mpi_store(deadline);
  if (text.starts_with("file:")) {
    return open_file_store(std::string(text.substr(5)), secret.empty());
  }
  const std::size_t colon = text.rfind(':');
  return open_tcp_store(std::string(text.substr(4, colon - 4)), std::string(text.substr(colon + 1)),
                        rank, secret, deadline);
}

}  // namespace gradwire
