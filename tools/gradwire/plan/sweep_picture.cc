#include "plan/sweep_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

namespace gradwire::cli {
namespace {

// Colours as in the plots of bench/, Okabe and Ito's, which colour-blind people tell apart; those
// of codecs are lighter, as their names stand on them.
constexpr const char* kInk = "#22272e";
constexpr const char* kFaint = "#57606a";
constexpr const char* kLine = "#d8dee4";
constexpr const char* kExactColour = "#e6eaef";
constexpr const char* kCodecColours[] = {"#3db999", "#7cc4ee", "#f0e442", "#d99bbd", "#e9b23c"};

constexpr double kWidth = 960, kHeight = 640;
constexpr double kNames = 184, kScale = 72;  // margins: beside the ends of curves, and the other
constexpr double kStepsTop = 92, kStepsBottom = 372;
constexpr double kSharesTop = 428, kSharesBottom = 568;
constexpr double kTextHeight = 16, kLetter = 6.4;  // of 12 px

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '&') {
      result += "&amp;";
    } else if (letter == '<') {
      result += "&lt;";
    } else {
      result += letter;
    }
  }
  return result;
}

/// 1, 2 and 5 times powers of ten.
std::vector<double> round_numbers(double from, double to) {
  std::vector<double> numbers;
  for (double decade = std::pow(10, std::floor(std::log10(from))); decade <= to; decade *= 10) {
    for (const double times : {1, 2, 5}) {
      const double number = times * decade;
      if (number >= from * 0.999 && number <= to * 1.001) numbers.push_back(number);
    }
  }
  return numbers;
}

std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.6g} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.6g} ms", 1e3 * seconds)
                         : fmt::format("{:.6g} us", 1e6 * seconds);
}

std::string value_text(const Sweep& sweep, double value) {
  if (sweep.key == "step") return time_text(value / 1e3);
  if (sweep.key != "link") return fmt::format("{:.6g}", value);
  if (value >= 1e9) return fmt::format("{:.6g} Gbit/s", value / 1e9);
  return value >= 1e6 ? fmt::format("{:.6g} Mbit/s", value / 1e6)
                      : fmt::format("{:.6g} kbit/s", value / 1e3);
}

const char* title_of_axis(const Sweep& sweep) {
  if (sweep.key == "link") return "rate of the links between hosts";
  if (sweep.key == "hosts") return "hosts";
  return sweep.key == "step" ? "computing of a step" : "ranks of each host";
}

/// A step by some way, along all points.
struct Curve {
  const char* name;
  const char* colour;
  double width;
  const char* dashes;
  std::function<double(const SweepPoint&)> seconds;

  /// Whether the axis, which is logarithmic, has a place for it: no step takes infinitely long, as
  /// "all compressed" does of a single rank.
  bool drawn(const SweepPoint& point) const {
    return std::isfinite(seconds(point)) && seconds(point) > 0;
  }
};

const std::vector<Curve>& curves() {
  // The plan is wide and below the others: where it coincides with one, both are seen.
  static const std::vector<Curve> kCurves{
      {"by the plan", "#d55e00", 7, "", [](const auto& p) { return p.predicted_seconds; }},
      {"computing alone", "#8c959f", 1.5, "2 4", [](const auto& p) { return p.compute_seconds; }},
      {"if codecs took no time", kFaint, 1.5, "7 4",
       [](const auto& p) { return p.baselines.bound_seconds; }},
      {"all exact", "#0072b2", 2, "", [](const auto& p) { return p.baselines.plain_seconds; }},
      {"all compressed", kInk, 2, "",
       [](const auto& p) { return p.baselines.all_compressed_seconds; }}};
  return kCurves;
}

class Picture {
 public:
  Picture(const SweepTitles& titles, const Sweep& sweep, const std::vector<SweepPoint>& points)
      : sweep_(sweep),
        points_(points),
        names_left_(spread(points.front()) > spread(points.back())) {
    begin(titles);
    x_axis();
    steps();
    shares();
    text_ += "</svg>\n";
  }

  const std::string& text() const { return text_; }

 private:
  /// Between the curves at a point: names stand where that is wide.
  static double spread(const SweepPoint& point) {
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (const Curve& curve : curves()) {
      if (!curve.drawn(point)) continue;
      least = std::min(least, curve.seconds(point));
      most = std::max(most, curve.seconds(point));
    }
    return most / least;
  }

  double left() const { return names_left_ ? kNames : kScale; }
  double right() const { return kWidth - (names_left_ ? kScale : kNames); }
  double x(double value) const {
    const double first = points_.front().value, last = points_.back().value;
    return left() + (right() - left()) * std::log(value / first) / std::log(last / first);
  }
  double y(double seconds) const {
    return kStepsBottom -
           (kStepsBottom - kStepsTop) * std::log(seconds / least_) / std::log(most_ / least_);
  }
  static double y_of_share(double share) {
    return kSharesBottom - share * (kSharesBottom - kSharesTop);
  }

  void write(double x, double y, const char* anchor, const char* colour, const std::string& text,
             const char* more = "") {
    text_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\"{}>{}</text>\n",
                    x, y, anchor, colour, more, escaped(text));
  }
  void line(double x1, double y1, double x2, double y2, const char* colour) {
    text_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1,
        x2, y2, colour);
  }
  /// A number of a vertical axis, on the side where no names are.
  void tick_text(double at, const std::string& text) {
    write(names_left_ ? right() + 8 : left() - 8, at + 4, names_left_ ? "start" : "end", kFaint,
          text);
  }

  void begin(const SweepTitles& titles) {
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
        "height=\"{1}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        kWidth, kHeight);
    write(24, 32, "start", kInk, titles.title, " font-size=\"18\" font-weight=\"bold\"");
    write(24, 52, "start", kFaint, titles.subtitle);
  }

  void heading(double top, const char* text) {
    write(left(), top - 10, "start", kInk, text, " font-weight=\"bold\"");
  }

  void steps() {
    for (const Curve& curve : curves()) {
      for (const SweepPoint& point : points_) {
        if (!curve.drawn(point)) continue;
        least_ = std::min(least_, curve.seconds(point));
        most_ = std::max(most_, curve.seconds(point));
      }
    }
    least_ /= 1.15;
    most_ *= 1.05;
    heading(kStepsTop, "a step takes");
    for (const double seconds : round_numbers(least_, most_)) {
      line(left(), y(seconds), right(), y(seconds), kLine);
      tick_text(y(seconds), time_text(seconds));
    }
    for (const Curve& curve : curves()) {
      std::string places;
      for (const SweepPoint& point : points_) {
        if (!curve.drawn(point)) continue;
        places += fmt::format("{:.1f},{:.1f} ", x(point.value), y(curve.seconds(point)));
      }
      text_ += fmt::format(
          "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" "
          "stroke-dasharray=\"{}\" stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n",
          places, curve.colour, curve.width, curve.dashes);
    }
    names();
  }

  /// Where a curve begins on the side of the names; none of a curve without points.
  const SweepPoint* end_of(const Curve& curve) const {
    const auto drawn = [&](const SweepPoint& point) { return curve.drawn(point); };
    if (names_left_) {
      const auto first = std::ranges::find_if(points_, drawn);
      return first == points_.end() ? nullptr : &*first;
    }
    const auto last = std::find_if(points_.rbegin(), points_.rend(), drawn);
    return last == points_.rend() ? nullptr : &*last;
  }

  /// Beside the ends of the curves, from top to bottom, none upon another.
  void names() {
    std::vector<std::pair<double, const Curve*>> places;
    for (const Curve& curve : curves()) {
      const SweepPoint* const end = end_of(curve);
      if (end != nullptr) places.emplace_back(y(curve.seconds(*end)), &curve);
    }
    if (places.empty()) return;
    std::ranges::stable_sort(places, {}, [](const auto& place) { return place.first; });
    for (std::size_t i = 1; i < places.size(); ++i) {
      places[i].first = std::max(places[i].first, places[i - 1].first + kTextHeight);
    }
    places.back().first = std::min(places.back().first, kStepsBottom);
    for (std::size_t i = places.size() - 1; i-- > 0;) {
      places[i].first = std::min(places[i].first, places[i + 1].first - kTextHeight);
    }
    for (const auto& [at, curve] : places) {
      write(names_left_ ? left() - 12 : right() + 12, at + 4, names_left_ ? "end" : "start",
            curve->colour, curve->name, " font-weight=\"bold\"");
    }
  }

  double share_at(std::size_t point, const std::string& codec) const {
    const auto& codecs = points_[point].codecs;
    const auto found = std::ranges::find(codecs, codec, &CodecShare::codec);
    return found == codecs.end() ? 0 : found->of_bytes;
  }

  /// Bands of all codecs, one upon another, exact messages on top.
  void shares() {
    heading(kSharesTop, "which codec takes how much of the gradients");
    std::vector<std::string> codecs;
    for (const CodecRange& range : ranges_of(points_)) codecs.push_back(range.codec);
    codecs.emplace_back("none");
    std::vector<double> lower(points_.size()), upper(points_.size());
    std::size_t colours = 0;
    for (const std::string& codec : codecs) {
      for (std::size_t i = 0; i < points_.size(); ++i) upper[i] = lower[i] + share_at(i, codec);
      const bool exact = codec == "none";
      band(codec, exact ? kExactColour : kCodecColours[colours++ % std::size(kCodecColours)], lower,
           upper);
      lower = upper;
    }
    for (const double share : {0., 0.5, 1.}) {
      tick_text(y_of_share(share), fmt::format("{:.0f} %", 100 * share));
    }
    for (const auto& [at, name] : in_bands_) {
      write(at.first, at.second, "middle", kInk, name, " font-weight=\"bold\"");
    }
    double at = right();
    for (auto key = beside_.rbegin(); key != beside_.rend(); ++key) {
      write(at, kSharesTop - 10, "end", kInk, key->second);
      at -= kLetter * static_cast<double>(key->second.size()) + 18;
      text_ += fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                           at, kSharesTop - 20, key->first);
      at -= 16;
    }
  }

  void band(const std::string& codec, const char* colour, const std::vector<double>& lower,
            const std::vector<double>& upper) {
    std::string edge;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      edge += fmt::format("{:.1f},{:.1f} ", x(points_[i].value), y_of_share(upper[i]));
    }
    for (std::size_t i = points_.size(); i-- > 0;) {
      edge += fmt::format("{:.1f},{:.1f} ", x(points_[i].value), y_of_share(lower[i]));
    }
    text_ += fmt::format("<polygon points=\"{}\" fill=\"{}\" stroke=\"white\"/>\n", edge, colour);
    name_band(codec == "none" ? "exact" : codec, colour, lower, upper);
  }

  /// In the middle of where the band is widest, or above all of them where it is nowhere wide
  /// enough.
  void name_band(const std::string& name, const char* colour, const std::vector<double>& lower,
                 const std::vector<double>& upper) {
    const double half = kLetter * static_cast<double>(name.size()) / 2 + 6;
    double widest = 0, y_there = 0, first = 0, last = 0;
    for (double at = left() + half; at <= right() - half; at += 4) {
      double bottom = kSharesBottom, top = kSharesTop;
      for (std::size_t i = 0; i + 1 < points_.size(); ++i) {
        if (x(points_[i + 1].value) < at - half || x(points_[i].value) > at + half) continue;
        for (const std::size_t each : {i, i + 1}) {
          bottom = std::min(bottom, y_of_share(lower[each]));
          top = std::max(top, y_of_share(upper[each]));
        }
      }
      const bool as_wide = std::abs(bottom - top - widest) < 1;
      if (!as_wide && bottom - top < widest) continue;
      if (!as_wide) first = at;
      last = at;
      widest = std::max(widest, bottom - top);
      y_there = (bottom + top) / 2 + 4;
    }
    if (widest >= kTextHeight) {
      in_bands_.push_back({{(first + last) / 2, y_there}, name});
    } else {
      beside_.emplace_back(colour, name);
    }
  }

  void x_axis() {
    std::vector<double> ticks = round_numbers(points_.front().value, points_.back().value);
    if (sweep_.key == "hosts" || sweep_.key == "ranks-per-host") ticks = sweep_.values;
    double free_from = 0;
    for (const double value : ticks) {
      const std::string text = value_text(sweep_, value);
      const double half = kLetter * static_cast<double>(text.size()) / 2;
      line(x(value), kStepsTop, x(value), kStepsBottom, kLine);
      line(x(value), kSharesBottom, x(value), kSharesBottom + 5, kFaint);
      if (x(value) - half < free_from) continue;
      write(x(value), kSharesBottom + 20, "middle", kFaint, text);
      free_from = x(value) + half + 8;
    }
    write((left() + right()) / 2, kSharesBottom + 44, "middle", kInk, title_of_axis(sweep_));
  }

  const Sweep& sweep_;
  const std::vector<SweepPoint>& points_;
  const bool names_left_;
  double least_ = std::numeric_limits<double>::infinity(), most_ = 0;  // seconds
  std::vector<std::pair<std::pair<double, double>, std::string>> in_bands_;
  std::vector<std::pair<const char*, std::string>> beside_;  // colours and names
  std::string text_;
};

}  // namespace

std::string draw_sweep(const SweepTitles& titles, const Sweep& sweep,
                       const std::vector<SweepPoint>& points) {
  return Picture(titles, sweep, points).text();
}

}  // namespace gradwire::cli
