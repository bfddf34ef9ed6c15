// Which way every layer of a model takes, from which step on, and why. A file that a person can
// read and edit: docs/plan.md has the format.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/way.h"

namespace gradwire {

/// A way from a step on.
struct Stage {
  std::uint64_t from_step = 0;
  Way way{};
  std::string reason{};  ///< in words, for people

  friend bool operator==(const Stage&, const Stage&) = default;
};

/// Layers that travel alike.
struct LayerPlan {
  /// A name, or a pattern as in a shell: `*` stands for any letters, `?` for one, `[a-c]` and
  /// `[!a-c]` for one of these and one of the others.
  std::string layers{};
  std::vector<Stage>
      stages{};  ///< at least one, the first from step 0, later ones from later steps
  /// Where it was read, for messages: "plan.json, line 3". Plans from other places are equal.
  std::string place{};

  friend bool operator==(const LayerPlan& a, const LayerPlan& b) {
    return a.layers == b.layers && a.stages == b.stages;
  }
};

struct Plan {
  std::vector<LayerPlan> layers{};        ///< see `stages_of`
  std::vector<Stage> otherwise{Stage{}};  ///< of layers that none matches

  /// From the text of a file. Throws `Error(invalid_spec)` that names the line and what would be
  /// right there.
  static Plan parse(std::string_view json);

  /// The same of a file, which is then named, too. Throws `Error(io)` if it cannot be read.
  static Plan read(const std::string& path);

  /// `parse(json())` gives an equal plan. Equal plans have equal texts.
  std::string json() const;

  /// Those of the entry that has the layer's very name; or else of the first whose pattern matches.
  const std::vector<Stage>& stages_of(std::string_view layer) const;

  /// In some stage of some layer.
  bool has_feedback() const;
  bool has_momentum() const;

  /// Throws `Error(invalid_argument)` that names all patterns that match none of these layers, as
  /// those with a typing error do.
  void check_matches(std::span<const std::string> layers) const;

  /// Throws `Error(invalid_spec)` for what no text gives, such as stages out of order.
  void check() const;

  friend bool operator==(const Plan&, const Plan&) = default;
};

/// Of these stages, the one at a step.
const Stage& stage_at(std::span<const Stage> stages, std::uint64_t step) noexcept;

}  // namespace gradwire
