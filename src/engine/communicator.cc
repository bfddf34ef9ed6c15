#include "gradwire/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <thread>
#include <unordered_map>

#include "base/checksum.h"
#include "codec/notes.h"
#include "codec/registry.h"
#include "collective/algorithms.h"
#include "engine/calls.h"
#include "engine/clock_offset.h"
#include "engine/engine.h"
#include "engine/layers.h"
#include "engine/parts.h"
#include "engine/plan_agreement.h"
#include "plan/grouping.h"
#include "plan/resources.h"
#include "plan/route.h"
#include "rendezvous/rendezvous.h"
#include "trace/recorder.h"
#include "transport/inproc.h"
#include "transport/mpi_world.h"

namespace gradwire {
namespace {

using engine::after;
using engine::call_of;
using engine::check;
using engine::check_apart;
using engine::check_names;
using engine::Engine;
using engine::EngineOptions;
using engine::Item;
using engine::Line;
using engine::Operation;
using engine::Parts;
using engine::parts_of;
using engine::Recipe;
using engine::RecipeKey;
using engine::refuse;
using engine::Routine;
using engine::Shape;
using engine::Source;
using engine::WorkState;

// A rank's memory for messages. Pages that are never used cost nothing.
constexpr std::size_t kMessageBytes = std::size_t{64} << 20;

/// More are forgotten, so that a program whose sizes or ways never repeat does not fill the memory.
constexpr std::size_t kMostRecipes = 1024;
/// The same for names that never repeat: beyond that all tensors' turns begin anew, on all ranks at
/// the same call.
constexpr std::size_t kMostTurns = std::size_t{1} << 16;

/// What random numbers know a tensor by. Without a name its place in the call tells it apart.
std::uint64_t key_of(const std::string& name, std::size_t place) {
  return checksum(std::as_bytes(std::span(name.data(), name.size()))) + (name.empty() ? place : 0);
}

Deadline connect_deadline(const ConnectOptions& options) {
  const bool own = options.connect_timeout.count() > 0;
  return after(own ? options.connect_timeout : options.timeout);
}

void check_way(const Tensor& tensor, const Way& way, Collective collective) {
  way.check();
  if (!way.feedback) return;
  if (tensor.name.empty()) {
    refuse("a tensor asks for feedback and has no name, by which what is held back is found again");
  }
  if (has_sums(collective)) return;
  refuse(
      fmt::format("tensor '{}' asks for feedback, which {} does not have: only all_reduce and "
                  "reduce_scatter keep what codecs hold back",
                  engine::label_of(tensor), name_of(collective)));
}

/// Where nobody is left who could be told.
void report(const std::string& failure) {
  if (!failure.empty()) std::fprintf(stderr, "gradwire: the trace is lost: %s\n", failure.c_str());
}

EngineOptions recorded(EngineOptions engine, trace::Recorder* recorder) {
  engine.recorder = recorder;
  return engine;
}

class Ranked final : public Communicator {
 public:
  Ranked(std::unique_ptr<Router> transport, const EngineOptions& engine,
         const ConnectOptions& options, std::unique_ptr<trace::Recorder> recorder)
      : options_(options),
        ranks_{.count = engine.size, .per_host = engine.per_host},
        me_(engine.rank),
        in_memory_(engine.in_memory),
        recorder_(std::move(recorder)),
        engine_(std::make_unique<Engine>(std::move(transport), recorded(engine, recorder_.get()))) {
  }
  /// In the child of a fork there is no thread to end, and nobody to take leave of.
  ~Ranked() override {
    if (!home_.here()) {
      static_cast<void>(engine_.release());
      static_cast<void>(recorder_.release());
      return;
    }
    engine_.reset();
    if (recorder_) report(recorder_->save());
  }

  std::uint32_t rank() const noexcept override { return me_; }
  std::uint32_t size() const noexcept override { return ranks_.count; }
  std::uint32_t ranks_per_host() const noexcept override { return ranks_.per_host; }
  trace::Recorder* recorder() noexcept override { return home_.here() ? recorder_.get() : nullptr; }

  void register_layers(std::span<const LayerShape> layers) override {
    home_.require("communicator");
    layers_.add(layers);
  }

  void check_routes(const Plan& plan) const override {
    home_.require("communicator");
    gradwire::check_routes(plan, ranks_);
  }

  void set_plan(const Plan& plan, std::uint64_t from_step) override {
    home_.require("communicator");
    agree_on(plan, from_step);
    layers_.set(plan, from_step);
  }

  Work all_reduce(std::span<const Tensor> tensors, const OperationOptions& options) override {
    return start_tensors(make(Collective::all_reduce, options), tensors, 0, options);
  }

  Work reduce_scatter(std::span<const Tensor> parts, const OperationOptions& options) override {
    return start_parts(Collective::reduce_scatter, {parts, ranks_.count}, options);
  }
  Work all_gather(std::span<const Tensor> parts, const OperationOptions& options) override {
    return start_parts(Collective::all_gather, {parts, ranks_.count}, options);
  }

  Work broadcast(std::span<const Tensor> tensors, std::uint32_t root,
                 const OperationOptions& options) override {
    if (root >= ranks_.count) {
      refuse(
          fmt::format("there is no rank {} to broadcast from: there are {}", root, ranks_.count));
    }
    return start_tensors(make(Collective::broadcast, options), tensors, root, options);
  }

  Work barrier(const OperationOptions& options) override {
    auto operation = make(Collective::barrier, options);
    operation->recipe = recipe(Collective::barrier, {}, {}, 0);
    return start(std::move(operation), options);
  }

  std::vector<std::byte> save_residuals() const override {
    home_.require("communicator");
    return residuals_.save();
  }
  void load_residuals(std::span<const std::byte> bytes) override {
    home_.require("communicator");
    residuals_.load(bytes);
  }

  void abort(const std::string& reason) override {
    home_.require("communicator");
    engine_->abort(reason.empty() ? "a rank gave up, and did not say why" : reason);
  }

 private:
  std::shared_ptr<Operation> make(Collective collective, const OperationOptions& options) {
    home_.require("communicator");
    if (options.average && !has_sums(collective)) {
      refuse(fmt::format("{} has no sums to average", name_of(collective)));
    }
    if (options.timeout.count() < 0) refuse("the timeout of an operation is negative");
    auto operation = std::make_shared<Operation>();
    operation->collective = collective;
    operation->divisor = options.average ? static_cast<float>(ranks_.count) : 1;
    operation->seed = options.seed;
    operation->measure_error = options.measure_error;
    operation->counts = options.exact_energies;
    operation->keeps = options.measure_error;
    operation->work = std::make_shared<WorkState>();
    operation->deadline = after(options.timeout.count() > 0 ? options.timeout : options_.timeout);
    return operation;
  }

  /// Ranks that are about to set another plan, or none, are named on all of them.
  void agree_on(const Plan& plan, std::uint64_t from_step) {
    std::optional<Error> own;
    engine::Answer answer{.from_step = from_step};
    try {
      check_routes(plan);
      answer.hash = layers_.hash_of(plan, from_step);
    } catch (const Error& error) {  // others wait, and are told
      own = error;
      answer.refusal = error.what();
    }
    const auto answers = engine::gather_answers(*this, answer, options_.while_waiting);
    if (own) throw *own;
    engine::check_alike(answers);
    engine::check_same_ways(*this, answers, layers_.ways(plan, from_step), options_.while_waiting);
  }

  /// Where parts are given, `parts` of them are one tensor.
  std::vector<Way> ways_of(std::span<const Tensor> tensors, std::size_t parts,
                           const OperationOptions& options) const {
    std::vector<Way> ways;
    for (const Tensor& tensor : tensors) {
      ways.push_back(layers_.way_of(tensor, parts * tensor.view.count, options.step));
    }
    return ways;
  }

  /// What operations on such tensors do: made for the first of them.
  std::shared_ptr<const Recipe> recipe(Collective collective, std::span<const Tensor> tensors,
                                       std::span<const Way> ways, std::uint32_t root) {
    RecipeKey key(collective, root);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      key.add(tensors[i].view, ways[i % ways.size()]);
    }
    const std::string text = key.text();
    const std::lock_guard lock(mutex_);
    const auto found = recipes_.find(text);
    if (found != recipes_.end()) return found->second;
    if (recipes_.size() >= kMostRecipes) recipes_.clear();
    return recipes_[text] = make_recipe(collective, tensors, ways, root);
  }

  /// Of parts, those of one tensor have the same way: there are fewer ways than parts.
  std::shared_ptr<const Recipe> make_recipe(Collective collective, std::span<const Tensor> tensors,
                                            std::span<const Way> ways, std::uint32_t root) {
    std::vector<Shape> shapes;
    std::vector<Traveller> travellers;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Way& way = ways[i % ways.size()];
      const TensorView& view = tensors[i].view;
      shapes.push_back({view.count, way.codec, way.codec.for_sums()});
      travellers.push_back({way.codec, way.route, view.count, view.dtype});
    }
    const bool sums = collective == Collective::all_reduce;
    const std::vector<Group> groups =
        sums ? group_for_sums(travellers, options_.tuning.algorithm, ranks_.count)
             : std::vector<Group>{group_all(travellers, collective)};
    const std::uint32_t regions = has_owners(collective) && !sums ? ranks_.count : 0;
    std::vector<Line> lines;
    for (const Group& group : groups) {
      lines.push_back(engine::make_line({group.tensors.begin(), group.tensors.end()}, shapes,
                                        routine(collective, group.algorithm, root), limits(),
                                        regions));
    }
    return std::make_shared<const Recipe>(engine::make_recipe(std::move(lines), shapes, limits()));
  }

  PieceLimits limits() const {
    return {.ranks = ranks_.count,
            .in_memory = in_memory_,
            .asked = options_.tuning.piece_elements,
            .lane_bytes = engine_->lane_bytes()};
  }

  /// Made once per kind, with mutex_ held.
  std::shared_ptr<const Routine> routine(Collective collective, const std::string& algorithm,
                                         std::uint32_t root) {
    auto& known = routines_[{collective, algorithm, root}];
    if (!known) {
      Ranks ranks = ranks_;
      ranks.root = root;
      known = std::make_shared<const Routine>(find_algorithm(algorithm, collective, ranks),
                                              collective, ranks, me_);
    }
    return known;
  }

  Work start_tensors(std::shared_ptr<Operation> operation, std::span<const Tensor> tensors,
                     std::uint32_t root, const OperationOptions& options) {
    const Collective collective = operation->collective;
    check_apart(tensors);
    if (has_sums(collective)) check_names(tensors);
    const std::vector<Way> ways = ways_of(tensors, 1, options);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      check(tensors[i]);
      check_way(tensors[i], ways[i], collective);
    }
    operation->recipe = recipe(collective, tensors, ways, root);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
      operation->items.push_back(
          {.view = tensor.view, .source = i, .name = key_of(tensor.name, i)});
      Source& source = add_source(*operation, tensor, ways[i], tensor.view.count);
      if (collective != Collective::broadcast) source.input = {tensor.view};
    }
    finish_sources(*operation, tensors, ways);
    return start(std::move(operation), options);
  }

  /// Every rank's parts are a region of their own, so that parts of any size can be cut into
  /// pieces.
  Work start_parts(Collective collective, const Parts& parts, const OperationOptions& options) {
    auto operation = make(collective, options);
    const std::span<const Tensor> tensors = parts.of(0);
    if (has_sums(collective)) check_names(tensors);
    const std::vector<Way> ways = ways_of(tensors, ranks_.count, options);
    for (std::size_t i = 0; i < tensors.size(); ++i) check_way(tensors[i], ways[i], collective);
    operation->recipe = recipe(collective, parts.all(), ways, 0);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      add_source(*operation, tensors[i], ways[i], ranks_.count * tensors[i].view.count);
    }
    // What an all_gather finds in the parts of others is no input.
    const bool all = collective == Collective::reduce_scatter;
    for (std::uint32_t rank = 0; rank < ranks_.count; ++rank) {
      for (std::size_t i = 0; i < parts.tensors(); ++i) {
        const Tensor& part = parts.of(rank, i);
        // Parts of one tensor draw random numbers of their own.
        operation->items.push_back({.view = part.view,
                                    .source = i,
                                    .first = rank * part.view.count,
                                    .name = key_of(part.name, i * ranks_.count) + rank});
        if (all || rank == me_) operation->sources[i].input.push_back(part.view);
      }
    }
    finish_sources(*operation, tensors, ways);
    return start(std::move(operation), options);
  }

  /// What was kept is delivered also by a way without feedback, which then keeps nothing.
  Source& add_source(Operation& operation, const Tensor& tensor, const Way& way,
                     std::size_t count) {
    const Codec& codec = way.codec;
    Source& source =
        operation.sources.emplace_back(Source{.codec = codec, .sums_codec = codec.for_sums()});
    source.lossy = !codec.traits().lossless;
    source.counted = source.lossy || operation.counts;
    if (!has_sums(operation.collective)) return source;
    if (way.feedback) {
      source.feedback = *way.feedback;
      source.feedback.masking = source.feedback.masking && codec.traits().sparse;
      source.loan = residuals_.borrow(tensor.name, count, engine::label_of(tensor));
      if (way.feedback->momentum != 0) source.loan->momentum.resize(count);  // may throw, so here
    } else if (!tensor.name.empty()) {
      source.loan = residuals_.borrow_last(tensor.name, count, engine::label_of(tensor));
    }
    return source;
  }

  /// Nothing is refused any more: residuals and turns may change.
  void finish_sources(Operation& operation, std::span<const Tensor> tensors,
                      std::span<const Way> ways) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Source& source = operation.sources[i];
      source.turn = next_turn(operation.collective, tensors[i], source, i);
      const bool fits = !source.input.empty() && is_fitted(source.codec);
      if (fits && source.input.size() == 1 && operation.collective == Collective::all_reduce) {
        source.notes.resize(note_count(source.codec, source.input[0].count));
      }
      if (source.loan != nullptr) source.loan->ends = !ways[i].feedback;
      operation.keeps = operation.keeps || source.loan != nullptr;
      operation.samples = operation.samples || source.lossy;
      source.prepared = !fits && source.loan == nullptr;
      operation.unprepared += source.prepared ? 0 : 1;
      if (recorder_) operation.layers.push_back(recorder_->text(tensors[i].name));
    }
    operation.counts = operation.counts || operation.samples;
    operation.work->statistics.tensors.resize(tensors.size());
  }

  /// Turns are the tensor's, whatever is done meanwhile with others. Only sparse codecs take them.
  std::uint64_t next_turn(Collective collective, const Tensor& tensor, const Source& source,
                          std::size_t place) {
    if (!source.codec.traits().sparse) return 0;
    if (source.loan != nullptr) return source.loan->turn++;
    const std::lock_guard lock(mutex_);
    const std::tuple key(collective, tensor.name, tensor.name.empty() ? place : 0);
    if (turns_.size() >= kMostTurns && !turns_.contains(key)) turns_.clear();
    return turns_[key]++;
  }

  Work start(std::shared_ptr<Operation> operation, const OperationOptions& options) {
    Work work(operation->work);
    const std::uint64_t count = residuals_.operations++;
    operation->step = options.step.value_or(count);
    operation->turn = operation->step + me_;
    operation->call = call_of(*operation);
    engine_->submit(std::move(operation));
    return work;
  }

  const HomeProcess home_;
  const ConnectOptions options_;
  const Ranks ranks_;
  const std::uint32_t me_;
  const bool in_memory_;
  std::unique_ptr<trace::Recorder> recorder_;  // null: no trace
  Residuals residuals_;
  engine::Layers layers_;
  std::mutex mutex_;
  std::map<std::tuple<Collective, std::string, std::uint32_t>, std::shared_ptr<const Routine>>
      routines_;                                                            // guarded by mutex_
  std::unordered_map<std::string, std::shared_ptr<const Recipe>> recipes_;  // guarded by mutex_
  /// Of tensors without feedback, by name or place. Guarded by mutex_.
  std::map<std::tuple<Collective, std::string, std::size_t>, std::uint64_t> turns_;
  std::unique_ptr<Engine> engine_;  // the last: operations under way use all others
};

void check_options(const ConnectOptions& options) {
  if (options.size == 0 || options.rank >= options.size) {
    refuse(fmt::format("rank {} is not one of {} ranks", options.rank, options.size));
  }
  if (!options.job_ranks.empty() && options.job_ranks.size() != options.size) {
    refuse(fmt::format("{} job_ranks for {} ranks: give one for each, or none",
                       options.job_ranks.size(), options.size));
  }
  if (options.tuning.lanes == 0 || options.tuning.lanes > 64) {
    refuse(fmt::format("{} lanes: take 1 to 64", options.tuning.lanes));
  }
  if (options.timeout.count() <= 0) {
    refuse(fmt::format("a timeout of {} ms: take more than 0", options.timeout.count()));
  }
  if (!options.trace.empty()) trace::make_trace_folder(options.trace);
  if (options.tuning.threads > 64) {
    refuse(fmt::format("{} threads: take at most 64", options.tuning.threads));
  }
  if (options.tuning.algorithm != "auto") {  // whether these ranks can use it is seen when they do
    static_cast<void>(find_algorithm(options.tuning.algorithm));
  }
}

/// Shares this host's cores among the ranks on it.
void share_cores(EngineOptions& engine, const ConnectOptions& options, std::uint32_t ranks_here) {
  engine.cores = std::thread::hardware_concurrency() / ranks_here;
  engine.workers = codec_threads(engine.cores, options.tuning.threads);
}

/// With rank and size of MPI, when that is where ranks find one another.
ConnectOptions placed(ConnectOptions options) {
  if (options.store != "mpi") return options;
  const MpiWorld world;
  const bool open = options.rank == 0 && options.size == 1;
  if (!open && (options.rank != world.rank() || options.size != world.size())) {
    refuse(
        fmt::format("rank {} of {} is rank {} of {} in MPI: give no rank and size with this "
                    "store",
                    options.rank, options.size, world.rank(), world.size()));
  }
  options.rank = world.rank();
  options.size = world.size();
  return options;
}

EngineOptions engine_options(const ConnectOptions& options) {
  return {.rank = options.rank,
          .size = options.size,
          .job_ranks = options.job_ranks,
          .lanes = options.tuning.lanes,
          .message_bytes = kMessageBytes};
}

RendezvousOptions rendezvous_options(const ConnectOptions& options, Deadline deadline) {
  return {.me = options.rank,
          .count = options.size,
          .secret = options.security.secret,
          .encryption = {options.security.encryption,
                         {options.security.certificate, options.security.private_key,
                          options.security.authority}},
          .transport = options.network.transport,
          .launched_by_mpi = options.store == "mpi",
          .interface = options.network.interface,
          .port = options.network.port,
          .message_bytes = kMessageBytes,
          .traced = !options.trace.empty(),
          .deadline = deadline};
}

/// As in `trace::Origin`.
std::int64_t job_rank(const ConnectOptions& options) {
  if (options.job_ranks.empty()) return -1;
  const std::uint32_t rank = options.job_ranks[options.rank];
  return rank == options.rank ? -1 : std::int64_t{rank};
}

/// Of a rank that has the clock of all others; null if no trace is asked for.
std::unique_ptr<trace::Recorder> make_recorder(const ConnectOptions& options,
                                               std::uint64_t communicator) {
  if (options.trace.empty()) return nullptr;
  const trace::Origin origin{.communicator = communicator,
                             .rank = options.rank,
                             .size = options.size,
                             .job_rank = job_rank(options)};
  return std::make_unique<trace::Recorder>(options.trace, origin);
}

/// What others would need is checked all the same: a first try with one rank shows mistakes.
std::unique_ptr<Communicator> alone(const ConnectOptions& options) {
  if (!options.store.empty()) check_store(options.store);
  static_cast<void>(check_transport(rendezvous_options(options, {})));
  EngineOptions engine = engine_options(options);
  engine.per_host = 1;
  return std::make_unique<Ranked>(nullptr, std::move(engine), options,
                                  make_recorder(options, engine::draw_communicator_number()));
}

std::unique_ptr<Communicator> meet(const ConnectOptions& options, Store& store, Deadline deadline) {
  Connected connected = rendezvous(store, rendezvous_options(options, deadline));
  EngineOptions engine = engine_options(options);
  engine.per_host = connected.per_host;
  engine.in_memory = connected.all_in_memory;
  share_cores(engine, options, connected.on_this_host);
  std::unique_ptr<trace::Recorder> recorder;
  if (!options.trace.empty()) {
    auto agreed = engine::agree_on_origin(*connected.router, options.rank, options.size, deadline);
    agreed.origin.job_rank = job_rank(options);
    recorder = std::make_unique<trace::Recorder>(options.trace, agreed.origin);
    engine.lost = std::move(agreed.lost);
  }
  return std::make_unique<Ranked>(std::move(connected.router), engine, options,
                                  std::move(recorder));
}

}  // namespace

std::unique_ptr<Communicator> Communicator::connect(const ConnectOptions& asked) {
  const ConnectOptions options = placed(asked);
  check_options(options);
  if (options.size == 1) return alone(options);
  const WaitingHook hook(options.while_waiting);
  const Deadline deadline = connect_deadline(options);
  const auto store = open_store(options.store, options.rank, deadline, options.security.secret);
  return meet(options, *store, deadline);
}

std::unique_ptr<Communicator> Communicator::connect(const ConnectOptions& options, Store& store) {
  check_options(options);
  if (options.size == 1) return alone(options);
  const WaitingHook hook(options.while_waiting);
  return meet(options, store, connect_deadline(options));
}

std::vector<std::unique_ptr<Communicator>> Communicator::in_process(std::uint32_t size,
                                                                    const ConnectOptions& options,
                                                                    std::uint32_t per_host) {
  if (per_host == 0) per_host = size;
  if (per_host == 0 || size % per_host != 0) {
    refuse(fmt::format("{} ranks do not stand on hosts of {} each", size, per_host));
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  auto transports = make_inproc(size, kMessageBytes);
  const std::uint64_t number = engine::draw_communicator_number();
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    ConnectOptions own = options;
    own.rank = rank;
    own.size = size;
    check_options(own);
    EngineOptions engine{.rank = rank,
                         .size = size,
                         .per_host = per_host,
                         .job_ranks = options.job_ranks,
                         .lanes = options.tuning.lanes,
                         .in_memory = true};
    share_cores(engine, options, size);
    communicators.push_back(std::make_unique<Ranked>(std::move(transports[rank]), engine, own,
                                                     make_recorder(own, number)));
  }
  return communicators;
}

Work Communicator::reduce_scatter(const Tensor& tensor, const OperationOptions& options) {
  return reduce_scatter(std::span<const Tensor>(parts_of(tensor, size())), options);
}

Work Communicator::all_gather(const Tensor& tensor, const OperationOptions& options) {
  return all_gather(std::span<const Tensor>(parts_of(tensor, size())), options);
}

}  // namespace gradwire
