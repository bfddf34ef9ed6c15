#include "lent_store.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/clock.h"
#include "gradwire/error.h"

namespace gradwire::pytorch {
namespace {

std::chrono::milliseconds until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));  // 0 is for ever
}

std::string missing(const std::string& key) {
  return "PyTorch's store has no '" + key + "' in time: ";
}

/// Stores tell of a time-out by exceptions of several types.
template <class Call>
auto in_time(const std::string& key, Call call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::timeout, missing(key) + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Error(ErrorCode::timeout, missing(key) + error.what());
  }
}

}  // namespace

void LentStore::set(const std::string& key, const std::string& value, Deadline deadline) {
  in_time(key, [&] {
    store_->setTimeout(until(deadline));
    store_->set(key, value);
  });
}

std::string LentStore::get(const std::string& key, Deadline deadline) {
  return in_time(key, [&] {
    store_->wait({key}, until(deadline));
    return store_->get_to_str(key);
  });
}

std::int64_t LentStore::add(const std::string& key, std::int64_t amount, Deadline deadline) {
  return in_time(key, [&] {
    store_->setTimeout(until(deadline));
    return store_->add(key, amount);
  });
}

}  // namespace gradwire::pytorch
