// Which layers of a model are worth selecting from, and by which selection: what each way costs on
// a link, from the sizes of messages and from rates of codecs that were measured.
//
// The rates are constants and not measured where a job runs: what is sent, and with it every bit of
// a training, must not depend on how busy a machine was when it started.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/codec.h"

namespace gradwire {

struct Network {
  std::uint32_t ranks = 2;
  double bytes_per_second = 0;  ///< of a rank's link
};

/// Seconds until the sum of a layer is on all ranks: encoding, sending and decoding.
double exchange_seconds(const Codec& codec, std::size_t elements, const Network& network) noexcept;

/// The first of the fastest ways to exchange a layer.
const Codec& fastest(std::span<const Codec> ways, std::size_t elements,
                     const Network& network) noexcept;

}  // namespace gradwire
