// The stores that gradwire opens by itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gradwire/store.h"

namespace gradwire {

/// "file:DIRECTORY", "tcp:HOST:PORT" or "mpi". Throws `Error(invalid_argument)` that says so. With
/// a secret only ranks that have it, too, can use a tcp store.
std::unique_ptr<Store> open_store(std::string_view text, std::uint32_t rank, Deadline deadline,
                                  const std::string& secret = {});

std::unique_ptr<Store> open_file_store(const std::string& directory);
/// `serves`: this rank is the store.
std::unique_ptr<Store> open_tcp_store(const std::string& host, const std::string& port, bool serves,
                                      const std::string& secret, Deadline deadline);
/// The ranks of MPI themselves: all of them open it together. `deadline` also bounds how long the
/// end waits for others to take what was set.
std::unique_ptr<Store> open_mpi_store(Deadline deadline);

}  // namespace gradwire
