// PyTorch's key-value store, lent to gradwire's ranks so that they find one another.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gradwire/store.h"

namespace gradwire::pytorch {

class LentStore final : public Store {
 public:
  /// Talks to `store` over a connection of its own: a call that waits for a key stops all others on
  /// the same one.
  explicit LentStore(const c10::intrusive_ptr<c10d::Store>& store) : store_(store->clone()) {}

  void set(const std::string& key, const std::string& value, Deadline deadline) override;
  std::string get(const std::string& key, Deadline deadline) override;
  std::int64_t add(const std::string& key, std::int64_t amount, Deadline deadline) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace gradwire::pytorch
