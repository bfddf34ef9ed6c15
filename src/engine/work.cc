// What callers and the engine do with the state of an operation that they share.
#include <utility>

#include "engine/operation.h"

namespace gradwire {

void engine::WorkState::finish(std::optional<Error> failure) {
  std::vector<std::function<void(const Error*)>> calls;
  {
    const std::lock_guard lock(mutex);
    if (done) return;
    done = true;
    error = std::move(failure);
    statistics.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    calls.swap(callbacks);
    changed.notify_all();
  }
  for (const auto& call : calls) call(error ? &*error : nullptr);
}

void Work::wait() {
  while (!wait_for(kMaxTimeout)) {
  }
}

bool Work::wait_for(std::chrono::milliseconds timeout) {
  state_->home.require("operation");
  ++state_->waiting;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_until(lock, engine::after(timeout), [&] { return state_->done; });
  --state_->waiting;
  if (state_->error) throw *state_->error;
  return state_->done;
}

bool Work::done() const noexcept {
  if (!state_->home.here()) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Work::on_done(std::function<void(const Error*)> callback) {
  state_->home.require("operation");
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  callback(state_->error ? &*state_->error : nullptr);
}

Statistics Work::statistics() const {
  state_->home.require("operation");
  const std::lock_guard lock(state_->mutex);
  return state_->statistics;
}

}  // namespace gradwire
