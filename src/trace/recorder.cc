#include "trace/recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/file_descriptor.h"
#include "gradwire/error.h"
#include "trace/trace_file.h"

namespace gradwire::trace {
namespace {

constexpr std::size_t kMostTexts = 65536;

[[noreturn]] void refuse(const std::string& directory, const std::error_code& failure) {
  throw Error(ErrorCode::io,
              fmt::format("no trace can be written to {}: {}; name a folder that can be made and "
                          "written to, or leave the trace out",
                          directory, failure.message()));
}

std::string path_in(const std::string& directory, const Origin& origin) {
  make_trace_folder(directory);
  const std::string folder = std::filesystem::absolute(directory).string();  // programs may leave
  return fmt::format("{}/rank{}-{:016x}{}", folder, origin.rank, origin.communicator, kTraceSuffix);
}

}  // namespace

std::int64_t now_ns() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void make_trace_folder(const std::string& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (failure) refuse(directory, failure);
  std::string file = directory + "/gradwire-XXXXXX";
  const FileDescriptor made(mkostemp(file.data(), O_CLOEXEC));
  if (made.get() < 0) refuse(directory, {errno, std::generic_category()});
  unlink(file.c_str());
}

Recorder::Recorder(const std::string& directory, const Origin& origin, std::size_t capacity)
    : path_(path_in(directory, origin)), origin_(origin), ring_(capacity) {
  static_cast<void>(text(""));
  if (const std::string failure = save(); !failure.empty()) {  // not only when there is something
    throw Error(ErrorCode::io, failure);
  }
}

Text Recorder::text(std::string_view text) {
  const std::lock_guard lock(mutex_);
  const bool full = texts_.size() >= kMostTexts;
  const std::string key(full && !numbers_.contains(std::string(text)) ? "…" : text);
  const auto [known, is_new] = numbers_.try_emplace(key, static_cast<Text>(texts_.size()));
  if (is_new) texts_.push_back(key);
  return known->second;
}

void Recorder::add(const Event& event) noexcept {
  const std::lock_guard lock(mutex_);
  ring_[added_++ % ring_.size()] = event;
}

Recorder::Kept Recorder::kept() const {
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::min<std::uint64_t>(added_, ring_.size());
  const std::size_t oldest = added_ > count ? added_ % ring_.size() : 0;
  Kept kept{.events = {}, .texts = texts_, .overwritten = added_ - count};
  kept.events.reserve(count);
  const std::span<const Event> ring(ring_.data(), count);
  for (const auto part : {ring.subspan(oldest), ring.first(oldest)}) {
    kept.events.insert(kept.events.end(), part.begin(), part.end());
  }
  return kept;
}

std::string Recorder::save() const noexcept {
  try {
    const std::lock_guard lock(file_mutex_);
    const Kept all = kept();
    write_trace(path_, origin_, all.overwritten, all.texts, all.events);
    return {};
  } catch (const std::exception& failure) {
    return failure.what();
  }
}

std::optional<std::string> Recorder::save_within(std::chrono::milliseconds patience) noexcept {
  try {
    saving_ = std::async(std::launch::async, [this] { return save(); });
    if (saving_.wait_for(patience) != std::future_status::ready) return std::nullopt;
    return saving_.get();
  } catch (const std::exception& failure) {  // there is no thread to be had
    return failure.what();
  }
}

}  // namespace gradwire::trace
