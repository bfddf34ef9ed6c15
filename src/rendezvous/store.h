// The stores that gradwire opens by itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gradwire/store.h"

namespace gradwire {

/// Throws `Error(invalid_argument)` unless it is "file:DIRECTORY", "tcp:HOST:PORT" or "mpi".
void check_store(std::string_view text);

/// Opens what `check_store` takes. With a secret only ranks that have it, too, can use a tcp store,
/// and nothing in a store is secret.
std::unique_ptr<Store> open_store(std::string_view text, std::uint32_t rank, Deadline deadline,
                                  const std::string& secret = {});

/// `is_secret`: only this user may read what is in it. Throws `Error(invalid_argument)` for a
/// directory that then belongs to another user or that others can write to.
std::unique_ptr<Store> open_file_store(const std::string& directory, bool is_secret);
/// Rank 0 is the store: its end waits until all others have left, for two seconds at most and not
/// beyond the deadline. Every rank can open it once; when it opens it again, that is the next one.
std::unique_ptr<Store> open_tcp_store(const std::string& host, const std::string& port,
                                      std::uint32_t rank, const std::string& secret,
                                      Deadline deadline);
/// The ranks of MPI themselves: all of them open it together. `deadline` also bounds how long the
/// end waits for others to take what was set.
std::unique_ptr<Store> open_mpi_store(Deadline deadline);

}  // namespace gradwire
