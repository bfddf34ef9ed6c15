// Every element of every tensor lies in one chunk of one piece, however many there are.
#include "engine/layout.h"

#include <gtest/gtest.h>

namespace gradwire::engine {
namespace {

constexpr std::size_t k4G = std::size_t{1} << 32;  // what 32 bits cannot count

/// Where each tensor's next part must begin, as parts go by.
class Coverage {
 public:
  explicit Coverage(std::vector<std::size_t> counts)
      : counts_(std::move(counts)), next_(counts_.size()) {}

  void take(std::size_t tensor, std::size_t first, std::size_t count) {
    ASSERT_EQ(first, next_[tensor]) << "tensor " << tensor;
    ASSERT_GT(count, 0u);
    next_[tensor] += count;
  }
  bool complete() const { return next_ == counts_; }

 private:
  std::vector<std::size_t> counts_, next_;
};

void expect_covered(const std::vector<std::size_t>& counts, std::size_t piece,
                    std::uint32_t chunks) {
  const Layout layout(counts);
  const Cut cut{layout.size(), piece, 0};
  Coverage coverage(counts);
  for (std::size_t i = 0; i < cut.pieces(); ++i) {
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      layout.each_part(cut.chunk(i, chunk, chunks),
                       [&](std::size_t tensor, std::size_t first, std::size_t count, std::size_t) {
                         coverage.take(tensor, first, count);
                       });
    }
  }
  EXPECT_TRUE(coverage.complete());
}

TEST(Layout, pieces_and_chunks_cover_every_element_once_and_in_order) {
  for (const std::uint32_t chunks : {1u, 2u, 3u, 17u}) {
    expect_covered({}, 1024, chunks);
    expect_covered({0}, 1024, chunks);
    expect_covered({1, 0, 1000, 77, 0}, 1024, chunks);
    expect_covered({5000, 1, 127, 128, 129, 3000}, 1024, chunks);
    expect_covered({3 * k4G + 5, 1, k4G - 1, 2 * k4G}, k4G / 4, chunks);
  }
}

TEST(Layout, regions_beyond_32_bits_give_every_rank_its_own_part) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::size_t kPart = 2 * k4G + 9;
  const Layout layout(std::vector<std::size_t>(kRanks, kPart));
  const Cut cut{layout.size(), k4G / 8, round_up(kPart, kSliceAlignment)};
  Coverage coverage(std::vector<std::size_t>(kRanks, kPart));
  for (std::size_t i = 0; i < cut.pieces(); ++i) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      layout.each_part(cut.chunk(i, rank, kRanks),
                       [&](std::size_t tensor, std::size_t first, std::size_t count, std::size_t) {
                         ASSERT_EQ(tensor, rank);
                         coverage.take(tensor, first, count);
                       });
    }
  }
  EXPECT_TRUE(coverage.complete());
}

TEST(Layout, a_slice_of_a_view_begins_where_its_elements_do) {
  constexpr std::uintptr_t kSomewhere = 4096;
  const TensorView view{reinterpret_cast<void*>(kSomewhere), 3 * k4G, Dtype::f32};
  const TensorView slice = view.slice(2 * k4G + 1, 7);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slice.data),
            kSomewhere + (2 * k4G + 1) * sizeof(float));
  EXPECT_EQ(slice.count, 7u);
}

}  // namespace
}  // namespace gradwire::engine
