#include "codec/registry.h"

#include <array>

#include "codec/notes.h"
#include "gradwire/codec.h"

namespace gradwire {
namespace {

constexpr std::array kKinds = {&kNone, &kFp16, &kBf16, &kUniform, &kExponential,
                               &kSign, &kGrid, &kTopk, &kRandomk};

std::string kind_names() {
  std::string names;
  for (const CodecKind* kind : kKinds)
    names += (names.empty() ? "" : ", ") + std::string(kind->name);
  return names;
}

bool valid_view(const void* data, std::size_t count) noexcept {
  return count == 0 || data != nullptr;
}

}  // namespace

std::span<const CodecKind* const> codec_kinds() noexcept { return kKinds; }

const CodecKind* find_kind(std::uint8_t id) noexcept {
  for (const CodecKind* kind : kKinds) {
    if (kind->id == id) return kind;
  }
  return nullptr;
}

Codec Codec::parse(std::string_view spec) {
  SpecReader reader(spec);
  for (const CodecKind* kind : kKinds) {
    if (kind->name != reader.name()) continue;
    const Params params = kind->parse(reader);
    reader.finish();
    return {kind, params};
  }
  throw Error(ErrorCode::invalid_spec, "unknown codec '" + std::string(reader.name()) + "' in '" +
                                           std::string(spec) + "'; there are: " + kind_names());
}

std::string Codec::spec() const { return kind_->format(params_); }
std::string_view Codec::name() const noexcept { return kind_->name; }
Traits Codec::traits() const noexcept { return kind_->traits(params_); }
Codec Codec::fit(std::span<const ConstTensorView> layer) const noexcept {
  return {kind_, kind_->fit(params_, layer, {})};
}

Codec fit(const Codec& codec, ConstTensorView layer, std::span<double> notes) noexcept {
  const CodecKind& kind = CodecAccess::kind(codec);
  return CodecAccess::make(&kind,
                           kind.fit(CodecAccess::params(codec), std::span(&layer, 1), notes));
}

std::size_t note_count(const Codec& codec, std::size_t count) noexcept {
  const CodecKind& kind = CodecAccess::kind(codec);
  return kind.note_count == nullptr ? 0 : kind.note_count(count);
}

Codec Codec::for_sums() const noexcept {
  return kind_->for_sums == nullptr ? *this : kind_->for_sums(params_);
}

std::size_t Codec::max_encoded_bytes(std::size_t count) const noexcept {
  return kind_->max_bytes(params_, count);
}

std::size_t Codec::expected_bytes(std::size_t count) const noexcept {
  return kind_->expected_bytes == nullptr ? max_encoded_bytes(count)
                                          : kind_->expected_bytes(params_, count);
}

Encoded Codec::encode(ConstTensorView x, const EncodeOptions& options,
                      std::span<std::byte> out) const noexcept {
  return gradwire::encode(*this, x, options, {}, out);
}

Encoded encode(const Codec& codec, ConstTensorView x, const EncodeOptions& options,
               std::span<const double> notes, std::span<std::byte> out) noexcept {
  if (options.first_element % kSliceAlignment != 0 || !valid_view(x.data, x.count)) {
    return {Status::invalid_argument, 0};
  }
  if (out.size() < codec.max_encoded_bytes(x.count)) return {Status::buffer_too_small, 0};
  if (x.count == 0) return {Status::ok, 0};
  const CodecKind& kind = CodecAccess::kind(codec);
  const Codec::Params& params = CodecAccess::params(codec);
  const bool noted = !notes.empty() && kind.encode_noted != nullptr;
  return {Status::ok, noted ? kind.encode_noted(params, x, options, notes, out.data())
                            : kind.encode(params, x, options, out.data())};
}

namespace {

Status decode_checked(const CodecKind& kind, const Codec::Params& params,
                      std::span<const std::byte> payload, Dtype source, TensorView out,
                      Into into) noexcept {
  if (!valid_view(out.data, out.count)) return Status::invalid_argument;
  if (out.count == 0) return payload.empty() ? Status::ok : Status::corrupt;
  return kind.decode(params, payload, source, out, into);
}

}  // namespace

Status Codec::decode(std::span<const std::byte> payload, Dtype source,
                     TensorView out) const noexcept {
  return decode_checked(*kind_, params_, payload, source, out, Into::assign);
}

Status Codec::decode_add(std::span<const std::byte> payload, Dtype source,
                         TensorView out) const noexcept {
  return decode_checked(*kind_, params_, payload, source, out, Into::add);
}

Status each_sent(const Codec& codec, std::span<const std::byte> payload, Dtype source,
                 std::size_t count, NumberSink sink) noexcept {
  const CodecKind& kind = CodecAccess::kind(codec);
  if (kind.each_sent == nullptr) return Status::invalid_argument;
  if (count == 0) return payload.empty() ? Status::ok : Status::corrupt;
  return kind.each_sent(CodecAccess::params(codec), payload, source, count, sink);
}

std::vector<std::string> list_codecs() {
  std::vector<std::string> specs;
  for (const CodecKind* kind : kKinds) specs.push_back(Codec::parse(kind->name).spec());
  return specs;
}

}  // namespace gradwire
