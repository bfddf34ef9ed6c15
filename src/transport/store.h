// Where ranks find one another: a place that all of them can write to and read from.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "transport/job.h"

namespace gradwire {

class Store {
 public:
  virtual ~Store() = default;
  /// Both throw `Error(timeout)` when the store does not answer in time; `get` waits until somebody
  /// has set the key.
  virtual void set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
};

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
