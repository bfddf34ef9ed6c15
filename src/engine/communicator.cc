#include "gradwire/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <thread>

#include "base/checksum.h"
#include "collective/schedule.h"
#include "engine/clock_offset.h"
#include "engine/engine.h"
#include "engine/parts.h"
#include "engine/pieces.h"
#include "plan/route.h"
#include "rendezvous/rendezvous.h"
#include "trace/recorder.h"
#include "transport/inproc.h"
#include "transport/mpi_world.h"

namespace gradwire {
namespace {

using engine::after;
using engine::check;
using engine::check_apart;
using engine::cut_for_lanes;
using engine::Engine;
using engine::EngineOptions;
using engine::Item;
using engine::Layout;
using engine::Operation;
using engine::Parts;
using engine::parts_of;
using engine::refuse;
using engine::Routine;
using engine::WorkState;

// A rank's memory for messages. Pages that are never used cost nothing.
constexpr std::size_t kMessageBytes = std::size_t{64} << 20;

/// What random numbers know a tensor by. Without a name its place in the call tells it apart.
std::uint64_t key_of(const std::string& name, std::size_t place) {
  return checksum(std::as_bytes(std::span(name.data(), name.size()))) + (name.empty() ? place : 0);
}

Deadline connect_deadline(const ConnectOptions& options) {
  const bool own = options.connect_timeout.count() > 0;
  return after(own ? options.connect_timeout : options.timeout);
}

void check_way(const Tensor& tensor, Collective collective) {
  tensor.way.check();
  if (!tensor.way.feedback) return;
  if (tensor.name.empty()) {
    refuse("a tensor asks for feedback and has no name, by which what is held back is found again");
  }
  if (collective == Collective::all_reduce) return;
  refuse(
      fmt::format("tensor '{}' asks for feedback, which {} does not have: only all_reduce keeps "
                  "what codecs hold back",
                  tensor.name, name_of(collective)));
}

Traffic traffic_of(std::span<const Tensor> tensors) {
  Traffic traffic;
  for (const Tensor& tensor : tensors) {
    traffic.add(tensor.way.codec, tensor.view.count, tensor.view.dtype);
  }
  return traffic;
}

/// By which the tensors of one call travel together; empty: they name none.
std::string route_of(std::span<const Tensor> tensors) {
  if (tensors.empty()) return {};
  const std::string& route = tensors.front().way.route;
  for (const Tensor& tensor : tensors) {
    if (tensor.way.route == route) continue;
    refuse(
        fmt::format("tensors '{}' and '{}' of one call ask for the routes '{}' and '{}': they "
                    "travel together, by one; make two calls",
                    tensors.front().name, tensor.name, route, tensor.way.route));
  }
  return route;
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
  trace::Recorder* recorder() noexcept override { return home_.here() ? recorder_.get() : nullptr; }

  Work all_reduce(std::span<const Tensor> tensors, const OperationOptions& options) override {
    auto operation = make(Collective::all_reduce, tensors, options, 0);
    add_items(*operation, tensors);
    return start(std::move(operation), options);
  }

  Work reduce_scatter(std::span<const Tensor> parts, const OperationOptions& options) override {
    return start_regions(Collective::reduce_scatter, {parts, ranks_.count}, options);
  }
  Work all_gather(std::span<const Tensor> parts, const OperationOptions& options) override {
    return start_regions(Collective::all_gather, {parts, ranks_.count}, options);
  }

  Work broadcast(std::span<const Tensor> tensors, std::uint32_t root,
                 const OperationOptions& options) override {
    if (root >= ranks_.count) {
      refuse(
          fmt::format("there is no rank {} to broadcast from: there are {}", root, ranks_.count));
    }
    auto operation = make(Collective::broadcast, tensors, options, root);
    add_items(*operation, tensors);
    return start(std::move(operation), options);
  }

  Work barrier(const OperationOptions& options) override {
    return start(make(Collective::barrier, {}, options, 0), options);
  }

  std::vector<std::byte> save_residuals() const override {
    home_.require("communicator");
    return residuals_.save();
  }
  void load_residuals(std::span<const std::byte> bytes) override {
    home_.require("communicator");
    residuals_.load(bytes);
  }

 private:
  std::shared_ptr<Operation> make(Collective collective, std::span<const Tensor> tensors,
                                  const OperationOptions& options, std::uint32_t root) {
    home_.require("communicator");
    const bool sums =
        collective == Collective::all_reduce || collective == Collective::reduce_scatter;
    if (options.average && !sums) {
      refuse(fmt::format("{} has no sums to average", name_of(collective)));
    }
    auto operation = std::make_shared<Operation>();
    operation->collective = collective;
    operation->divisor = options.average ? static_cast<float>(ranks_.count) : 1;
    operation->seed = options.seed;
    operation->measure_error = options.measure_error;
    operation->work = std::make_shared<WorkState>();
    if (options.timeout.count() < 0) refuse("the timeout of an operation is negative");
    operation->deadline = after(options.timeout.count() > 0 ? options.timeout : options_.timeout);
    operation->routine = routine(collective, algorithm(collective, tensors), root);
    return operation;
  }

  std::string algorithm(Collective collective, std::span<const Tensor> tensors) const {
    const std::string asked = route_of(tensors);
    if (!asked.empty()) return asked;
    if (collective != Collective::all_reduce) return has_owners(collective) ? "sra" : "tree";
    if (options_.algorithm != "auto") return options_.algorithm;
    return std::string(cheapest_route(traffic_of(tensors), ranks_.count).algorithm);
  }

  /// Made once per kind: it does not depend on the numbers.
  std::shared_ptr<const Routine> routine(Collective collective, const std::string& algorithm,
                                         std::uint32_t root) {
    const std::lock_guard lock(mutex_);
    auto& known = routines_[{collective, algorithm, root}];
    if (!known) {
      Ranks ranks = ranks_;
      ranks.root = root;
      known = std::make_shared<const Routine>(find_algorithm(algorithm, collective, ranks),
                                              collective, ranks, me_);
    }
    return known;
  }

  void add_items(Operation& operation, std::span<const Tensor> tensors) {
    std::vector<std::size_t> counts;
    check_apart(tensors);
    for (const Tensor& tensor : tensors) {
      check(tensor);
      check_way(tensor, operation.collective);
      Item& item = operation.items.emplace_back(Item{.view = tensor.view,
                                                     .codec = tensor.way.codec,
                                                     .sums_codec = tensor.way.codec.for_sums(),
                                                     .name = key_of(tensor.name, counts.size()),
                                                     .tensor = counts.size()});
      if (operation.collective == Collective::all_reduce) item.residual = residual_of(tensor);
      counts.push_back(tensor.view.count);
    }
    add_inputs(operation, tensors);
    name_layers(operation, tensors);
    operation.work->statistics.tensors.resize(tensors.size());
    operation.layout = Layout(counts);
    const bool sparse = std::ranges::all_of(
        tensors, [](const Tensor& tensor) { return tensor.way.codec.traits().sparse; });
    operation.cut = cut_for_lanes(operation, piece_elements(sparse), 0, engine_->lane_bytes());
  }

  /// What was kept is delivered also by a way without feedback, which then keeps nothing.
  Residuals::Loan residual_of(const Tensor& tensor) {
    const std::size_t count = tensor.view.count;
    if (tensor.way.feedback) return residuals_.borrow(tensor.name, count);
    return tensor.name.empty() ? nullptr : residuals_.borrow_last(tensor.name, count);
  }

  /// For the trace.
  void name_layers(Operation& operation, std::span<const Tensor> tensors) const {
    if (!recorder_) return;
    for (const Tensor& tensor : tensors) operation.layers.push_back(recorder_->text(tensor.name));
  }

  /// From here on nothing is refused: residuals take the numbers up.
  void add_inputs(Operation& operation, std::span<const Tensor> tensors) {
    for (Item& item : operation.items) {
      const Tensor& tensor = tensors[item.tensor];
      const Codec& codec = tensor.way.codec;
      const std::uint32_t reuse = tensor.way.feedback ? tensor.way.feedback->reuse : 1;
      item.turn = next_turn(operation.collective, tensor, item);
      if (operation.collective == Collective::broadcast) continue;
      // What is not finite is sent as it is, and arrives; what was kept before stays as it was.
      if (item.residual != nullptr && !all_finite(tensor.view)) item.residual.reset();
      if (item.residual != nullptr) {
        item.residual->ends = !tensor.way.feedback;
        Feedback feedback = tensor.way.feedback.value_or(Feedback{});
        feedback.masking = feedback.masking && codec.traits().sparse;
        item.residual->accumulate(tensor.view, feedback);
        if (ranks_.count == 1) item.residual->release(tensor.view);
      }
      item.notes.resize(item.codec.note_count(item.view.count));
      item.codec = item.residual == nullptr ? codec.fit(tensor.view, item.notes)
                                            : item.residual->fit(codec, item.notes, reuse);
    }
  }

  /// Turns are the tensor's, whatever is done meanwhile with others. Only sparse codecs take them.
  std::uint64_t next_turn(Collective collective, const Tensor& tensor, const Item& item) {
    if (!tensor.way.codec.traits().sparse) return 0;
    if (item.residual != nullptr) return item.residual->turn++;
    const std::lock_guard lock(mutex_);
    return turns_[{collective, tensor.name, tensor.name.empty() ? item.tensor : 0}]++;
  }

  /// Every rank's parts are a region of their own, so that parts of any size can be cut into
  /// pieces.
  Work start_regions(Collective collective, const Parts& parts, const OperationOptions& options) {
    auto operation = make(collective, parts.all(), options, 0);
    // What an all_gather finds in the parts of others is no input.
    const bool all = collective == Collective::reduce_scatter;
    const std::vector<Codec> fitted = parts.fit(all ? 0 : me_, all ? ranks_.count : me_ + 1);
    std::vector<std::size_t> counts;
    for (std::uint32_t rank = 0; rank < ranks_.count; ++rank) {
      for (std::size_t i = 0; i < parts.tensors(); ++i) {
        const Tensor& part = parts.of(rank, i);
        check_way(part, collective);
        counts.push_back(part.view.count);
        // Parts of one tensor draw random numbers of their own.
        operation->items.push_back({.view = part.view,
                                    .codec = fitted[i],
                                    .sums_codec = part.way.codec.for_sums(),
                                    .name = key_of(part.name, i * ranks_.count) + rank,
                                    .tensor = i});
      }
    }
    take_turns(*operation, parts);
    name_layers(*operation, parts.of(0));
    operation->work->statistics.tensors.resize(parts.tensors());
    operation->layout = Layout(counts);
    const std::size_t region = operation->layout.size() / ranks_.count;
    const std::size_t piece =
        round_up(std::max<std::size_t>(1, piece_elements(false) / ranks_.count), kSliceAlignment);
    operation->cut = cut_for_lanes(*operation, piece, region, engine_->lane_bytes());
    return start(std::move(operation), options);
  }

  /// All parts of a tensor are sent in the same turn.
  void take_turns(Operation& operation, const Parts& parts) {
    for (std::size_t i = 0; i < parts.tensors(); ++i) {
      const std::uint64_t turn =
          next_turn(operation.collective, parts.of(0, i), operation.items[i]);
      for (std::uint32_t rank = 0; rank < ranks_.count; ++rank) {
        operation.items[rank * parts.tensors() + i].turn = turn;
      }
    }
  }

  /// Over a network: large enough that messages are. In memory: small enough for the caches. Of
  /// sparse codecs: as large as can be, so that headers do not count.
  std::size_t piece_elements(bool sparse) const {
    const std::size_t least = std::size_t{1} << (in_memory_ ? 16 : 19);
    const std::size_t per_rank = std::size_t{1} << (in_memory_ ? 13 : 15);
    const std::size_t usual = std::max(least, ranks_.count * per_rank);
    const std::size_t wanted = options_.piece_elements > 0 ? options_.piece_elements : usual;
    const std::size_t most = engine_->lane_bytes() / 16;  // four bytes each, at most four times
    if (sparse && options_.piece_elements == 0) return most / kSliceAlignment * kSliceAlignment;
    return std::max(kSliceAlignment, std::min(wanted, most) / kSliceAlignment * kSliceAlignment);
  }

  Work start(std::shared_ptr<Operation> operation, const OperationOptions& options) {
    Work work(operation->work);
    const std::uint64_t count = residuals_.operations++;
    operation->step = options.step.value_or(count);
    if (operation->cut.piece == 0) operation->cut.piece = kSliceAlignment;
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
  std::mutex mutex_;
  std::map<std::tuple<Collective, std::string, std::uint32_t>, std::shared_ptr<const Routine>>
      routines_;  // guarded by mutex_
  /// Of tensors without feedback, by name or place. Guarded by mutex_.
  std::map<std::tuple<Collective, std::string, std::size_t>, std::uint64_t> turns_;
  std::unique_ptr<Engine> engine_;  // the last: operations under way use all others
};

void check_options(const ConnectOptions& options) {
  if (options.size == 0 || options.rank >= options.size) {
    refuse(fmt::format("rank {} is not one of {} ranks", options.rank, options.size));
  }
  if (options.lanes == 0 || options.lanes > 64) {
    refuse(fmt::format("{} lanes: take 1 to 64", options.lanes));
  }
  if (options.timeout.count() <= 0) {
    refuse(fmt::format("a timeout of {} ms: take more than 0", options.timeout.count()));
  }
  if (!options.trace.empty()) trace::make_trace_folder(options.trace);
  if (options.threads > 64) refuse(fmt::format("{} threads: take at most 64", options.threads));
  if (options.algorithm != "auto") {  // whether these ranks can use it is seen when they do
    static_cast<void>(find_algorithm(options.algorithm, Collective::all_reduce, {}));
  }
}

/// Shares this host's cores among the ranks on it.
void share_cores(EngineOptions& engine, const ConnectOptions& options, std::uint32_t ranks_here) {
  constexpr std::uint32_t kMostWorkers = 4;  // beyond that memory is the limit
  engine.cores = std::thread::hardware_concurrency() / ranks_here;
  // One core is the caller's and one moves messages.
  const std::uint32_t spare = engine.cores > 2 ? std::min(engine.cores - 2, kMostWorkers) : 0;
  engine.workers = options.threads > 0 ? options.threads - 1 : spare;
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
          .lanes = options.lanes,
          .message_bytes = kMessageBytes};
}

RendezvousOptions rendezvous_options(const ConnectOptions& options, Deadline deadline) {
  return {.me = options.rank,
          .count = options.size,
          .secret = options.secret,
          .encryption = {options.encryption,
                         {options.certificate, options.private_key, options.authority}},
          .transport = options.transport,
          .launched_by_mpi = options.store == "mpi",
          .interface = options.interface,
          .port = options.port,
          .message_bytes = kMessageBytes,
          .traced = !options.trace.empty(),
          .deadline = deadline};
}

/// Of a rank that has the clock of all others; null if no trace is asked for.
std::unique_ptr<trace::Recorder> make_recorder(const ConnectOptions& options,
                                               std::uint64_t communicator) {
  if (options.trace.empty()) return nullptr;
  const trace::Origin origin{
      .communicator = communicator, .rank = options.rank, .size = options.size};
  return std::make_unique<trace::Recorder>(options.trace, origin);
}

/// What others would need is checked all the same: a first try with one rank shows mistakes.
std::unique_ptr<Communicator> alone(const ConnectOptions& options) {
  if (!options.store.empty()) check_store(options.store);
  static_cast<void>(check_transport(rendezvous_options(options, {})));
  return std::make_unique<Ranked>(nullptr, engine_options(options), options,
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
  const auto store = open_store(options.store, options.rank, deadline, options.secret);
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
                         .lanes = options.lanes,
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
