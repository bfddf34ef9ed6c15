#include "gradients/gradient_groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace gradwire::cli {
namespace {

constexpr std::array<std::string_view, 3> kEmbeddings = {"embed", "position", "head"};

/// MODEL/STEP/LAYER taken apart.
struct GradientName {
  std::string_view model;
  std::uint64_t step;
  std::string_view layer;
};

std::optional<std::uint64_t> parse_step(std::string_view text) {
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return step;
}

std::optional<GradientName> parse_name(std::string_view name) {
  const std::size_t first = name.find('/');
  if (first == std::string_view::npos) return std::nullopt;
  const std::size_t second = name.find('/', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const auto step = parse_step(name.substr(first + 1, second - first - 1));
  if (!step) return std::nullopt;
  return GradientName{name.substr(0, first), *step, name.substr(second + 1)};
}

bool is_embedding(std::string_view layer) {
  const std::string_view component = layer.substr(0, layer.find('.'));
  return std::find(kEmbeddings.begin(), kEmbeddings.end(), component) != kEmbeddings.end();
}

/// Groups under construction, in the order in which they will stand: model, then variant, then
/// step.
class GroupList {
 public:
  void add(const std::string& family, std::uint64_t step, const Layer& layer, bool whole) {
    GradientGroup& group = groups_[{family, step}];
    if (group.layers.empty()) {
      group.whole = whole;
      group.name = family + "/" + std::to_string(step);
      group.step = step;
      if (step >= kFirstTotalledStep) {
        group.total = family + "/steps>=" + std::to_string(kFirstTotalledStep);
      }
    }
    group.layers.push_back(layer);
  }

  void add_unnumbered(const std::string& name, const Layer& layer) {
    GradientGroup& group = groups_[{name, 0}];
    group.name = name;
    group.layers.push_back(layer);
  }

  std::vector<GradientGroup> take() {
    std::vector<GradientGroup> list;
    for (auto& [key, group] : groups_) list.push_back(std::move(group));
    return list;
  }

 private:
  std::map<std::pair<std::string, std::uint64_t>, GradientGroup> groups_;
};

std::set<std::string_view> models_with_embeddings(std::span<const NamedTensor> tensors) {
  std::set<std::string_view> models;
  for (const NamedTensor& tensor : tensors) {
    const auto name = parse_name(tensor.name);
    if (name && is_embedding(name->layer)) models.insert(name->model);
  }
  return models;
}

void add_numbered(GroupList& groups, const GradientName& name, bool has_embeddings,
                  const NamedTensor& tensor) {
  const Layer layer{layer_key(name.layer), tensor.values, tensor.dimensions};
  const std::string model(name.model);
  groups.add(model, name.step, layer, true);
  if (has_embeddings && !is_embedding(name.layer)) {
    groups.add(model + "-without-embeddings", name.step, layer, false);
  }
}

void add_unnumbered(GroupList& groups, const NamedTensor& tensor) {
  const std::size_t slash = tensor.name.rfind('/');
  groups.add_unnumbered(slash == std::string::npos ? "all" : tensor.name.substr(0, slash),
                        {layer_key(tensor.name), tensor.values, tensor.dimensions});
}

}  // namespace

bool is_wanted(std::span<const std::string> patterns, const std::string& group) {
  return patterns.empty() ||
         std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
           return fnmatch(pattern.c_str(), group.c_str(), 0) == 0;
         });
}

std::uint64_t layer_key(std::string_view name) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

std::vector<GradientGroup> group_gradients(std::span<const NamedTensor> tensors) {
  const std::set<std::string_view> with_embeddings = models_with_embeddings(tensors);
  GroupList groups;
  for (const NamedTensor& tensor : tensors) {
    if (const auto name = parse_name(tensor.name)) {
      add_numbered(groups, *name, with_embeddings.contains(name->model), tensor);
    } else {
      add_unnumbered(groups, tensor);
    }
  }
  return groups.take();
}

}  // namespace gradwire::cli
