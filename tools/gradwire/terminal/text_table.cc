#include "terminal/text_table.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace gradwire::cli {
namespace {

constexpr std::string_view kGap = "  ";

std::string emphasised(const std::string& text, Emphasis emphasis, bool colour) {
  if (!colour || emphasis == Emphasis::none || text.empty()) return text;
  return (emphasis == Emphasis::strong ? "\x1b[1m" : "\x1b[2m") + text + "\x1b[0m";
}

std::string padded(const std::string& text, std::size_t width, Align align) {
  const std::string fill(width - std::min(width, text.size()), ' ');
  return align == Align::left ? text + fill : fill + text;
}

void strip_trailing_spaces(std::string& text) { text.erase(text.find_last_not_of(' ') + 1); }

bool stdout_takes_colour() {
  const char* no_color = std::getenv("NO_COLOR");  // no-color.org
  return isatty(STDOUT_FILENO) != 0 && (no_color == nullptr || *no_color == '\0');
}

}  // namespace

TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

void TextTable::add_row(std::vector<std::string> cells, Emphasis emphasis) {
  cells.resize(columns_.size());
  lines_.push_back({std::move(cells), false, emphasis});
}

void TextTable::add_section(std::string title) {
  lines_.push_back({{std::move(title)}, true, Emphasis::strong});
}

std::vector<std::size_t> TextTable::widths() const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) {
    widths.push_back(std::max(column.title.size(), column.unit.size()));
  }
  for (const Line& line : lines_) {
    for (std::size_t i = 0; !line.is_section && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], line.cells[i].size());
    }
  }
  return widths;
}

std::string TextTable::render_cells(const std::vector<std::string>& cells,
                                    const std::vector<std::size_t>& widths) const {
  std::string text;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (i > 0) text += kGap;
    text += padded(cells[i], widths[i], columns_[i].align);
  }
  strip_trailing_spaces(text);
  return text;
}

std::string TextTable::render(bool colour) const {
  const std::vector<std::size_t> column_widths = widths();
  std::vector<std::string> titles;
  std::vector<std::string> units;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    units.push_back(column.unit);
  }
  std::string text =
      emphasised(render_cells(titles, column_widths), Emphasis::strong, colour) + '\n';
  const std::string unit_line = render_cells(units, column_widths);
  if (!unit_line.empty()) text += emphasised(unit_line, Emphasis::faint, colour) + '\n';
  for (const Line& line : lines_) {
    const std::string body =
        line.is_section ? line.cells[0] : render_cells(line.cells, column_widths);
    if (line.is_section) text += '\n';
    text += emphasised(body, line.emphasis, colour) + '\n';
  }
  return text;
}

void print(const TextTable& table) {
  std::fputs(table.render(stdout_takes_colour()).c_str(), stdout);
}

void print_note(const std::string& text) {
  std::fputs((emphasised(text, Emphasis::faint, stdout_takes_colour()) + '\n').c_str(), stdout);
}

}  // namespace gradwire::cli
