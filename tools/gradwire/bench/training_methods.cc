#include "bench/training_methods.h"

#include <algorithm>
#include <regex>

#include "gradwire/error.h"
#include "gradwire/way.h"

namespace gradwire::cli {
namespace {

bool is_setting(std::string_view piece) {
  const std::size_t equals = piece.find('=');
  return equals != std::string_view::npos && equals < piece.find(':');
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> methods;
  while (true) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::string_view piece = text.substr(0, end);
    if (is_setting(piece) && !methods.empty()) {
      methods.back().append(",").append(piece);
    } else {
      methods.emplace_back(piece);
    }
    if (end == text.size()) return methods;
    text.remove_prefix(end + 1);
  }
}

/// Throws unless the worker will know it.
void check(const std::string& method) {
  static const std::regex kWorkers("auto|adapt|gloo|fp16|bf16|powersgd(:rank=[1-9][0-9]?)?");
  static const std::string kSetting = "(density|momentum|masking|warmup|ramp|clip|values)=[^,]+";
  static const std::regex kResidual("residual(:" + kSetting + "(," + kSetting + ")*)?");
  if (std::regex_match(method, kWorkers) || std::regex_match(method, kResidual)) return;
  Way::parse(method);
}

}  // namespace

std::vector<std::string> parse_training_methods(std::string_view text) {
  std::vector<std::string> methods = split(text);
  std::for_each(methods.begin(), methods.end(), check);
  return methods;
}

}  // namespace gradwire::cli
