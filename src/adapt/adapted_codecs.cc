#include "adapt/adapted_codecs.h"

#include <fmt/format.h>

#include <utility>

#include "codec/grid.h"

namespace gradwire::adapt {
namespace {

std::vector<std::uint64_t> elements_of(std::span<const AdaptedLayer> layers) {
  std::vector<std::uint64_t> elements;
  for (const AdaptedLayer& layer : layers) elements.push_back(layer.elements);
  return elements;
}

std::vector<std::string> names_of(std::span<const AdaptedLayer> layers) {
  std::vector<std::string> names;
  for (const AdaptedLayer& layer : layers) names.push_back(layer.name);
  return names;
}

}  // namespace

AdaptedCodecs::AdaptedCodecs(std::span<const AdaptedLayer> layers, std::uint32_t ranks)
    : tuner_(elements_of(layers), ranks), guard_(names_of(layers)) {}

bool AdaptedCodecs::see(std::vector<Sight> step, std::optional<double> loss) {
  const bool cares = guard_.see(step, tuner_, loss);
  const bool tuned = tuner_.see(step);
  return cares || tuned;
}

Codec AdaptedCodecs::adapted(std::size_t layer, const Codec& codec) const {
  const Care care = guard_.care(layer);
  const bool has_steps = grid::step_of(codec).has_value();
  if (care == Care::exact || (care == Care::finer && !has_steps)) return Codec::parse("none");
  if (!has_steps) return codec;
  const double step = tuner_.step_of(layer) / (care == Care::finer ? kFiner : 1);
  return grid::with_step(codec, static_cast<float>(step));
}

bool AdaptedCodecs::is_careful() const {
  for (std::size_t i = 0; i < guard_.layers(); ++i) {
    if (guard_.care(i) != Care::usual) return true;
  }
  return false;
}

std::string AdaptedCodecs::reason(std::size_t layer) const {
  switch (guard_.care(layer)) {
    case Care::exact:
      return "guarded: exactly, until numbers or losses are as usual";
    case Care::finer:
      return "guarded: finer, until numbers are as usual";
    case Care::usual:
      break;
  }
  const Sight& usual = tuner_.usual(layer);
  if (usual.energy == 0) return "adapted: nothing is known yet";
  return fmt::format("adapted: consensus {:.2f}", consensus(usual, tuner_.ranks()));
}

std::vector<std::byte> AdaptedCodecs::save() const {
  ByteWriter writer;
  tuner_.save(writer);
  guard_.save(writer);
  return std::move(writer).finish();
}

bool AdaptedCodecs::load(std::span<const std::byte> saved) {
  ByteReader reader(saved);
  Tuner tuner = tuner_;
  Guard guard = guard_;
  if (!tuner.load(reader) || !guard.load(reader) || !reader.empty()) return false;
  tuner_ = std::move(tuner);
  guard_ = std::move(guard);
  return true;
}

}  // namespace gradwire::adapt
