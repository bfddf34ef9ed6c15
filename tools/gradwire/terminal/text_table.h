// Aligned tables for people. Cells are ASCII, so that a byte is a column.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::cli {

enum class Align : bool { left, right };

/// A column's heading: a title and, on the line below, a unit or an empty text.
struct Column {
  std::string title;
  std::string unit = {};
  Align align = Align::right;
};

enum class Emphasis : std::uint8_t { none, strong, faint };

class TextTable {
 public:
  explicit TextTable(std::vector<Column> columns);

  /// `cells` has one text per column.
  void add_row(std::vector<std::string> cells, Emphasis emphasis = Emphasis::none);
  /// A line of its own between rows, for example the name of what the next rows are about.
  void add_section(std::string title);

  /// All lines, each ended by a newline. `colour` adds escape codes and changes no width.
  std::string render(bool colour) const;

 private:
  struct Line {
    std::vector<std::string> cells;  // a section has its title alone
    bool is_section;
    Emphasis emphasis;
  };

  std::vector<std::size_t> widths() const;
  std::string render_cells(const std::vector<std::string>& cells,
                           const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<Line> lines_;
};

/// Writes to stdout, in colour when that is a terminal and NO_COLOR is not set.
void print(const TextTable& table);
/// A line of text on stdout; faint in colour.
void print_note(const std::string& text);

}  // namespace gradwire::cli
