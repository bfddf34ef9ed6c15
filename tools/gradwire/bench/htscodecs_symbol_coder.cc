#include "bench/symbol_coder.h"

#if defined(GRADWIRE_HAVE_HTSCODECS)

#include <htscodecs/rANS_static4x16.h>

namespace gradwire::cli {
namespace {

/// Its interface takes bytes that are not const and does not change them.
unsigned char* as_input(const void* bytes) {
  return static_cast<unsigned char*>(const_cast<void*>(bytes));
}

class HtscodecsCoder final : public SymbolCoder {
 public:
  explicit HtscodecsCoder(bool vectorised) : cpu_(vectorised ? 0xffff : 0) {}

  std::size_t max_bytes() const override {
    return rans_compress_bound_4x16(kBlockSymbols, RANS_ORDER_X32);
  }

  std::size_t encode(std::span<const std::uint8_t> block, std::span<std::byte> out) override {
    rans_set_cpu(cpu_);
    auto size = static_cast<unsigned>(out.size());
    const void* done =
        rans_compress_to_4x16(as_input(block.data()), static_cast<unsigned>(block.size()),
                              reinterpret_cast<unsigned char*>(out.data()), &size, RANS_ORDER_X32);
    return done == nullptr ? 0 : size;
  }

  bool decode(std::span<const std::byte> bytes, std::span<std::uint8_t> block) override {
    rans_set_cpu(cpu_);
    auto size = static_cast<unsigned>(block.size());
    const void* done = rans_uncompress_to_4x16(
        as_input(bytes.data()), static_cast<unsigned>(bytes.size()), block.data(), &size);
    return done != nullptr && size == block.size();
  }

 private:
  int cpu_;  // the instructions it may use
};

}  // namespace

std::unique_ptr<SymbolCoder> make_htscodecs_coder(bool vectorised) {
  return std::make_unique<HtscodecsCoder>(vectorised);
}

}  // namespace gradwire::cli

#else

namespace gradwire::cli {

std::unique_ptr<SymbolCoder> make_htscodecs_coder(bool) { return nullptr; }

}  // namespace gradwire::cli

#endif
