// `gradwire schedule`: a collective's steps as text, or as a picture drawn from the schedule
// itself.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collective/algorithms.h"
#include "collective/schedule.h"
#include "collective/validate.h"
#include "gradwire/error.h"
#include "subcommands.h"

namespace gradwire::cli {
namespace {

struct Options {
  std::string algorithm;  // empty: the first that can be used
  std::string collective = "all_reduce";
  Ranks ranks{.count = 4, .per_host = 2};
  std::string svg;
  bool list = false;
};

void print_options() {
  for (const Option& option : all_options()) std::printf("%s\n", option.text().c_str());
}

Collective parse_collective(const std::string& name) {
  for (const Collective each :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::barrier}) {
    if (name == name_of(each)) return each;
  }
  throw Error(ErrorCode::invalid_argument,
              "there is no collective '" + name +
                  "'; take all_reduce, reduce_scatter, all_gather, broadcast or barrier");
}

void print_steps(const std::vector<Schedule>& schedules) {
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    std::printf("rank %zu\n", rank);
    const auto print = [](const Step& step) { std::printf("  %s\n", describe(step).c_str()); };
    std::ranges::for_each(schedules[rank].preparation, print);
    std::ranges::for_each(schedules[rank].steps, print);
  }
}

/// A step with the time it takes in a world where work takes 1, handing over 0.25 and travel 1.
struct Timed {
  const Step* step;
  double begin, end;
};

struct Message {
  std::size_t from, to;
  double sent, received;
};

struct Timeline {
  std::vector<std::vector<Timed>> ranks;
  std::vector<Message> messages;
  double end = 0;
};

Timeline lay_out(const std::vector<Schedule>& schedules) {
  Timeline timeline;
  timeline.ranks.resize(schedules.size());
  std::vector<double> clock(schedules.size());
  std::map<std::pair<std::size_t, std::size_t>, std::deque<double>> under_way;
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
      auto& done = timeline.ranks[rank];
      while (done.size() < schedules[rank].steps.size()) {
        const Step& step = schedules[rank].steps[done.size()];
        double begin = clock[rank];
        double cost = 1;
        if (step.op == Op::receive) {
          auto& queue = under_way[{step.peer, rank}];
          if (queue.empty()) break;
          begin = std::max(begin, queue.front() + 1);
          timeline.messages.push_back({step.peer, rank, queue.front(), begin});
          queue.pop_front();
          cost = 0.25;
        }
        if (step.op == Op::send) {
          cost = 0.25;
          under_way[{rank, step.peer}].push_back(begin + cost);
        }
        done.push_back({&step, begin, begin + cost});
        clock[rank] = begin + cost;
        timeline.end = std::max(timeline.end, clock[rank]);
        moved = true;
      }
    }
  }
  return timeline;
}

const char* colour_of(Op op) {
  switch (op) {
    case Op::encode:
      return "#d55e00";
    case Op::decode:
      return "#0072b2";
    case Op::decode_add:
      return "#56b4e9";
    case Op::keep:
    case Op::keep_rounding:
      return "#e69f00";
    case Op::send:
    case Op::receive:
      return "#999999";
    default:
      return "#009e73";
  }
}

class Svg {
 public:
  Svg(const Timeline& timeline, const std::string& title)
      : scale_(std::clamp(1400 / std::max(1.0, timeline.end), 12.0, 60.0)) {
    const double height = kTop + kRow * static_cast<double>(timeline.ranks.size()) + 30;
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"white\"/>\n<text x=\"10\" y=\"20\" font-size=\"15\" "
        "font-weight=\"bold\">{}</text>\n",
        x(timeline.end) + 20, height, title);
    legend();
    for (const Message& message : timeline.messages) line(message);
    for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
      row(rank, timeline.ranks[rank]);
    text_ += "</svg>\n";
  }
  const std::string& text() const { return text_; }

 private:
  static constexpr double kTop = 60;
  static constexpr double kRow = 60;
  static constexpr double kBox = 24;

  double x(double time) const { return 70 + time * scale_; }
  static double y(std::size_t rank) { return kTop + kRow * static_cast<double>(rank); }

  void legend() {
    double at = 10;
    for (const Op op : {Op::encode, Op::keep, Op::decode, Op::decode_add, Op::add, Op::send}) {
      const char* name = op == Op::send  ? "send, receive"
                         : op == Op::add ? "load, add, finish, store, echo"
                                         : name_of(op);
      text_ += fmt::format(
          "<rect x=\"{}\" y=\"32\" width=\"12\" height=\"12\" fill=\"{}\"/>"
          "<text x=\"{}\" y=\"42\">{}</text>\n",
          at, colour_of(op), at + 16, name);
      at += 130;
    }
  }
  void line(const Message& message) {
    text_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
        "stroke=\"#cccccc\"/>\n",
        x(message.sent), y(message.from) + kBox / 2, x(message.received), y(message.to) + kBox / 2);
  }
  void row(std::size_t rank, const std::vector<Timed>& steps) {
    text_ += fmt::format("<text x=\"10\" y=\"{:.1f}\">rank {}</text>\n", y(rank) + 17, rank);
    for (const Timed& timed : steps) {
      const Step& step = *timed.step;
      const bool travels = step.op == Op::send || step.op == Op::receive;
      text_ += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" "
          "fill=\"{}\" stroke=\"white\"><title>{}</title></rect>\n",
          x(timed.begin), y(rank), (timed.end - timed.begin) * scale_, kBox, colour_of(step.op),
          describe(step));
      if (travels || scale_ < 16) continue;
      text_ += fmt::format(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"white\" text-anchor=\"middle\" "
          "font-size=\"10\">{}</text>\n",
          x((timed.begin + timed.end) / 2), y(rank) + 16,
          step.count == 1 ? std::to_string(step.first) : "*");
    }
  }

  double scale_;
  std::string text_;
};

Algorithm algorithm_of(const Options& options, Collective collective) {
  if (!options.algorithm.empty()) {
    return find_algorithm(options.algorithm, collective, options.ranks);
  }
  const auto fits = [&](const Algorithm& each) {
    return each.refusal(collective, options.ranks).empty();
  };
  return *std::ranges::find_if(algorithms(), fits);  // sra or tree
}

void run(Options options) {
  if (options.list) return print_options();
  const Collective collective = parse_collective(options.collective);
  if (options.ranks.count % options.ranks.per_host != 0) options.ranks.per_host = 0;
  const Algorithm algorithm = algorithm_of(options, collective);
  const auto schedules = make_all(algorithm, collective, options.ranks);
  if (const auto problem = validate(schedules, collective, options.ranks)) {
    throw Error(ErrorCode::invalid_argument, "this schedule is wrong: " + *problem);
  }
  if (options.svg.empty()) return print_steps(schedules);
  std::ofstream file(options.svg);
  file << Svg(lay_out(schedules), fmt::format("{} {}, {} ranks", algorithm.name, options.collective,
                                              options.ranks.count))
              .text();
  file.close();
  if (!file) throw Error(ErrorCode::io, "cannot write " + options.svg);
}

}  // namespace

void add_schedule(CLI::App& gradwire) {
  auto options = std::make_shared<Options>();
  CLI::App& command =
      *gradwire.add_subcommand("schedule", "Show what each rank does in a collective");
  CLI::Option& algorithm = *command.add_option(
      "--algorithm", options->algorithm,
      "sra, ring, tree, allgather, hierarchical or hierarchical-exact (default: sra; tree for "
      "broadcast and barrier)");
  command
      .add_option("--option", options->algorithm,
                  "Any other way to exchange a tensor, written out; see --list")
      ->excludes(&algorithm);
  command.add_flag("--list", options->list, "Print all options instead, a line each");
  command.add_option("--collective", options->collective,
                     "all_reduce, reduce_scatter, all_gather, broadcast or barrier "
                     "(default: all_reduce)");
  command.add_option("--ranks", options->ranks.count, "How many (default: 4)")
      ->check(CLI::Range(1, 64));
  command
      .add_option("--per-host", options->ranks.per_host,
                  "Ranks on each host, for hierarchical ones and options with inside and between "
                  "(default: 2)")
      ->check(CLI::Range(1, 64));
  command.add_option("--svg", options->svg, "Draw it into this file instead of printing its steps");
  command.footer(
      "Examples:\n"
      "  gradwire schedule --ranks 3\n"
      "  gradwire schedule --algorithm hierarchical --ranks 4 --svg hierarchical.svg\n"
      "  gradwire schedule --list\n"
      "  gradwire schedule --option inside.reduce-encode-between.all_gather-decode-"
      "inside.broadcast");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
