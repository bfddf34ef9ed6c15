#include "terminal/line_splitter.h"

#include <gtest/gtest.h>

#include <vector>

namespace gradwire::cli {
namespace {

using Lines = std::vector<std::string>;

Lines split(const std::vector<std::string>& pieces) {
  Lines lines;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  LineSplitter splitter;
  for (const std::string& piece : pieces) splitter.add(piece, sink);
  splitter.finish(sink);
  return lines;
}

TEST(LineSplitter, lines_come_whole_however_the_bytes_arrive) {
  EXPECT_EQ((Lines{"one", "two"}), split({"one\ntwo\n"}));
  EXPECT_EQ((Lines{"one", "two"}), split({"o", "ne", "\n", "tw", "o\n"}));
}

TEST(LineSplitter, empty_lines_stay) { EXPECT_EQ((Lines{"", "a", ""}), split({"\na\n\n"})); }

TEST(LineSplitter, last_line_needs_no_newline) {
  EXPECT_EQ((Lines{"one", "rest"}), split({"one\nre", "st"}));
  EXPECT_EQ(Lines{}, split({}));
}

TEST(LineSplitter, endless_line_comes_in_pieces) {
  const std::string half(LineSplitter::kMaxLineBytes / 2, 'x');
  const std::string full = half + half;
  EXPECT_EQ((Lines{full}), split({full, "\n"}));
  EXPECT_EQ((Lines{full, half}), split({half, full, "\n"}));
  EXPECT_EQ((Lines{full, full, "y"}), split({full + full + "y"}));
}

}  // namespace
}  // namespace gradwire::cli
