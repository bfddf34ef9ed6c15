#include "engine/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <unordered_set>

namespace gradwire::engine {
namespace {

bool alike(const Tensor& a, const Tensor& b) {
  return a.name == b.name && a.view.count == b.view.count && a.view.dtype == b.view.dtype &&
         a.way == b.way;
}

std::string describe(const Tensor& tensor) {
  return fmt::format("'{}' with {} elements of {} and {}", label_of(tensor), tensor.view.count,
                     name_of(tensor.view.dtype), tensor.way ? tensor.way->text() : "no way");
}

}  // namespace

void refuse(const std::string& why) { throw Error(ErrorCode::invalid_argument, why); }

void check(const Tensor& tensor) {
  if (tensor.view.data == nullptr && tensor.view.count > 0) {
    refuse(fmt::format("tensor '{}' has no memory", label_of(tensor)));
  }
}

void check_apart(std::span<const Tensor> tensors) {
  struct Memory {
    const std::byte* begin;
    const std::byte* end;
    const Tensor* tensor;
  };
  std::vector<Memory> all;
  for (const Tensor& tensor : tensors) {
    const auto* begin = static_cast<const std::byte*>(tensor.view.data);
    const std::size_t bytes = tensor.view.count * size_of(tensor.view.dtype);
    if (bytes > 0) all.push_back({begin, begin + bytes, &tensor});
  }
  std::ranges::sort(all, std::less<>(), &Memory::begin);
  const auto overlaps = [](const Memory& a, const Memory& b) { return b.begin < a.end; };
  const auto found = std::ranges::adjacent_find(all, overlaps);
  if (found == all.end()) return;
  refuse(fmt::format("tensors '{}' and '{}' of one call share memory: give each number once",
                     label_of(*found->tensor), label_of(*std::next(found)->tensor)));
}

void check_names(std::span<const Tensor> tensors) {
  std::unordered_set<std::string_view> names;
  for (const Tensor& tensor : tensors) {
    if (tensor.name.empty() || names.insert(tensor.name).second) continue;
    refuse(fmt::format("two tensors of one call have the name '{}': give each its own, or none",
                       label_of(tensor)));
  }
}

std::vector<Tensor> parts_of(const Tensor& tensor, std::uint32_t ranks) {
  check(tensor);
  if (tensor.view.count % ranks != 0) {
    refuse(fmt::format("tensor '{}' has {} elements, which {} ranks cannot share equally",
                       label_of(tensor), tensor.view.count, ranks));
  }
  const std::size_t count = tensor.view.count / ranks;
  std::vector<Tensor> parts(ranks, tensor);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    parts[rank].view = tensor.view.slice(rank * count, count);
  }
  return parts;
}

Parts::Parts(std::span<const Tensor> all, std::uint32_t ranks)
    : all_(all), tensors_(all.size() / ranks) {
  if (all.size() % ranks != 0) {
    refuse(
        fmt::format("{} parts are not equally many for each of {} ranks: pass those of rank 0, "
                    "then those of rank 1, and so on",
                    all.size(), ranks));
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < tensors_; ++i) check_alike(rank, i);
  }
  check_apart(all);
}

void Parts::check_alike(std::uint32_t rank, std::size_t i) const {
  check(of(rank, i));
  if (alike(of(rank, i), of(0, i))) return;
  refuse(fmt::format(
      "part {} of rank {} is {}, but that of rank 0 is {}: pass the same name, count, dtype and "
      "way for every rank, with padding where a tensor cannot be shared equally",
      i, rank, describe(of(rank, i)), describe(of(0, i))));
}

}  // namespace gradwire::engine
