#include "terminal/line_splitter.h"

#include <algorithm>

namespace gradwire::cli {

void LineSplitter::add(std::string_view bytes, const Sink& sink) {
  for (std::size_t end = bytes.find('\n'); end != bytes.npos; end = bytes.find('\n')) {
    keep(bytes.substr(0, end), sink);
    sink(begun_);
    begun_.clear();
    bytes.remove_prefix(end + 1);
  }
  keep(bytes, sink);
}

void LineSplitter::finish(const Sink& sink) {
  if (begun_.empty()) return;
  sink(begun_);
  begun_.clear();
}

void LineSplitter::keep(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    if (begun_.size() == kMaxLineBytes) finish(sink);
    const std::string_view piece = bytes.substr(0, kMaxLineBytes - begun_.size());
    begun_ += piece;
    bytes.remove_prefix(piece.size());
  }
}

}  // namespace gradwire::cli
