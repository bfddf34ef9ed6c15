#include "engine/engine.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>

namespace gradwire::engine {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kBusyCore = std::chrono::microseconds(20);  // others computed while we yielded
constexpr std::size_t kWorthHandingOver = 16384;  // elements: less is done before a worker wakes
constexpr unsigned kRoundsPerLook = 256;  // at the clock, when there is always something to do
constexpr auto kLinger = std::chrono::seconds(5);
constexpr auto kPatience = std::chrono::milliseconds(500);  // with ranks that are asked
constexpr std::string_view kTooMany = "more messages than the operation has";

/// Also of nothing there is a message, which is made and looked at.
bool has_message(Op op) { return op == Op::encode || op == Op::decode || op == Op::decode_add; }

}  // namespace

Engine::Engine(std::unique_ptr<Router> transport, const EngineOptions& options)
    : transport_(std::move(transport)),
      options_(options),
      recording_(options.recorder != nullptr ? std::make_unique<const Recording>(*options.recorder)
                                             : nullptr),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      lanes_(options.lanes),
      preparing_(std::max(1u, options.workers)),
      mailboxes_(options.size),
      unsent_to_(options.size),
      lost_(options.lost),
      workers_(options.workers) {
  std::span<std::byte> memory = transport_ ? transport_->send_memory() : std::span<std::byte>();
  if (memory.empty()) {
    private_memory_ = std::make_unique_for_overwrite<std::byte[]>(options.message_bytes);
    memory = {private_memory_.get(), options.message_bytes};
  }
  const std::size_t share = memory.size() / lanes_.size() / 4096 * 4096;
  std::uint8_t number = 0;
  for (Lane& lane : lanes_) {
    lane.arena = memory.subspan(number * share, share);
    lane.number = number++;
  }
  for (Lane& lane : preparing_) lane.number = number++;
  thread_ = std::jthread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    news_.store(true, std::memory_order_release);
  }
  eventfd_write(wake_.get(), 1);
}

void Engine::submit(std::shared_ptr<Operation> operation) {
  {
    const std::lock_guard lock(mutex_);
    submitted_.push_back(std::move(operation));
    news_.store(true, std::memory_order_release);
  }
  eventfd_write(wake_.get(), 1);
}

void Engine::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    aborted_because_ = reason;
    news_.store(true, std::memory_order_release);
  }
  eventfd_write(wake_.get(), 1);
}

void Engine::run() {
  pthread_setname_np(pthread_self(), "gradwire");
  std::optional<Deadline> leave_by;
  unsigned rounds = 0;
  while (true) {
    bool did = take_submitted();
    if (transport_) did |= transport_->progress(*this);
    did |= start_pieces();
    for (Tag back = lanes_.size(); back > 0; --back) {  // oldest piece first
      if (next_number_ < back) continue;
      Lane& lane = lanes_[(next_number_ - back) % lanes_.size()];
      if (lane.active() && !broken_) did |= advance(lane);
    }
    did |= prepare(!did);
    if (stopping_ && operations_.empty()) {
      if (!leave_by) leave_by = Clock::now() + kLinger;
      if (!messages_left() || broken_ || Clock::now() > *leave_by) return;
    }
    if (++rounds % kRoundsPerLook == 0) check_deadlines();
    if (did) {
      spin_until_.reset();
    } else {
      idle();
    }
  }
}

bool Engine::messages_left() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.active() || lane.unsent > 0; });
}

bool Engine::take_submitted() {
  if (!news_.load(std::memory_order_acquire)) return false;
  std::vector<std::shared_ptr<Operation>> taken;
  std::optional<std::string> aborted_because;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(submitted_);
    aborted_because.swap(aborted_because_);
    stopping_ = stop_;
    news_.store(false, std::memory_order_relaxed);
  }
  if (aborted_because) fail(Error(ErrorCode::peer_failed, *aborted_because), options_.rank);
  for (auto& operation : taken) {
    if (broken_) {
      operation->finish(*broken_);
    } else {
      operations_.push_back(std::move(operation));
    }
  }
  if (stopping_ && !operations_.empty()) {
    fail(Error(ErrorCode::peer_failed,
               fmt::format("rank {} closed its communicator before the operation was done",
                           options_.rank)),
         options_.rank);
  }
  return !taken.empty();
}

bool Engine::start_pieces() {
  bool did = false;
  starved_ = false;
  for (const auto& operation : operations_) {
    const auto& pieces = operation->recipe->pieces;
    while (operation->next_piece < pieces.size()) {
      Lane& lane = lanes_[next_number_ % lanes_.size()];
      if (lane.active() || lane.unsent > 0) return did;
      starved_ = !operation->ready(pieces[operation->next_piece]);
      if (starved_) return did;
      begin(lane, operation, operation->next_piece++,
            Tag{operation->call} << kNumberBits | next_number_++);
      if (recording_) recording_->begun(lane);
      for (std::uint32_t peer = 0; peer < options_.size && !broken_; ++peer) {
        compare_calls(peer, lane);
      }
      if (broken_) return true;
      did = true;
    }
  }
  return did;
}

bool Engine::prepare(bool idle) {
  if (broken_) return false;
  if (workers_.empty() && !starved_ && !idle) return false;
  bool did = false;
  for (Lane& lane : preparing_) {
    if (!lane.active() && !start_preparation(lane)) continue;
    did |= advance(lane, 1);
  }
  return did;
}

/// Takes the next tensor that must be prepared; false when there is none.
bool Engine::start_preparation(Lane& lane) {
  for (const auto& operation : operations_) {
    while (operation->next_source < operation->sources.size()) {
      const std::size_t source = operation->next_source++;
      if (operation->sources[source].prepared) continue;
      begin_preparation(lane, operation, source);
      if (recording_) recording_->begun(lane);
      return true;
    }
  }
  return false;
}

/// Makes as many steps as it can and may; true when it made one.
bool Engine::advance(Lane& lane, std::size_t most_steps) {
  bool did = false;
  for (std::size_t steps = 0; lane.active() && !broken_;) {
    const Phase phase = lane.phase.load(std::memory_order_acquire);
    if (phase == Phase::computing) return did;
    if (phase == Phase::computed) {
      take_result(lane);
      did = true;
      continue;
    }
    if (lane.finished()) {
      finish(lane);
      return true;
    }
    if (steps++ == most_steps) return did;
    const Op op = lane.step().op;
    const bool went = op == Op::send      ? send(lane)
                      : op == Op::receive ? receive(lane)
                                          : compute(lane);
    if (!went) return did;
    did = true;
  }
  return did;
}

bool Engine::send(Lane& lane) {
  const Step& step = lane.step();
  SlotMessage& slot = lane.slots[step.slot];
  if (slot.arrival) {  // to be passed on: what is sent must lie in our own memory
    if (lane.room().size() < slot.bytes.size()) {
      const std::uint32_t culprit = slot.arrival->peer;  // pieces are cut so that all others fit
      fail(Error(ErrorCode::peer_failed,
                 fmt::format("rank {} sent a message of {} bytes, larger than any of {} can be",
                             culprit, slot.bytes.size(), name_of(lane.operation->collective))),
           culprit);
      return false;
    }
    const std::span<std::byte> copy = lane.keep(slot.bytes.size());
    std::copy(slot.bytes.begin(), slot.bytes.end(), copy.begin());
    release(slot);
    slot.bytes = copy;
  }
  ++lane.unsent;
  ++unsent_to_[step.peer];
  Statistics& statistics = lane.operation->work->statistics;
  statistics.sent_bytes += slot.bytes.size();
  ++statistics.sent_messages;
  const auto number = static_cast<std::uint64_t>(&lane - lanes_.data());
  transport_->send(step.peer, lane.tag, slot.bytes, number * options_.size + step.peer);
  if (recording_) recording_->step_done(lane);
  next_step(lane);
  return true;
}

bool Engine::receive(Lane& lane) {
  const Step& step = lane.step();
  auto& mailbox = mailboxes_[step.peer];
  const auto found = std::find_if(mailbox.begin(), mailbox.end(),
                                  [&](const Arrival& arrival) { return arrival.tag == lane.tag; });
  if (found == mailbox.end()) {
    const auto lost = lost_.find(step.peer);
    if (lost != lost_.end()) {
      fail(
          Error(ErrorCode::peer_failed, fmt::format("rank {} failed: {}", step.peer, lost->second)),
          step.peer);
    }
    return false;
  }
  lane.slots[step.slot] = {found->bytes, *found, false};
  mailbox.erase(found);
  if (lane.sends() > 0) count_passed_on(lane, lane.slots[step.slot].bytes);
  if (recording_) recording_->step_done(lane);
  next_step(lane);
  return true;
}

/// A message that others decode. If it is not what it should be, they will see that.
void Engine::count_passed_on(Lane& lane, std::span<const std::byte> bytes) {
  FrameReader frame(bytes, options_.in_memory ? Seal::none : Seal::checksum);
  if (frame.status() != Status::ok) return;
  std::size_t index = 0;
  for (const ItemRange& range : lane.ranges_of_step()) {
    if (index == frame.segment_count()) return;
    const std::size_t tensor = lane.operation->items[range.item].source;
    const std::uint64_t sent = lane.sends() * frame.segment(index++).bytes;
    lane.operation->work->statistics.tensors[tensor].sent_bytes += sent;
  }
}

/// Executes the lane's step, or lends the lane to a worker that does.
bool Engine::compute(Lane& lane) {
  const Seal seal = options_.in_memory ? Seal::none : Seal::checksum;
  const std::size_t elements = lane.computed = lane.elements();
  if (elements == 0 && !has_message(lane.step().op)) {
    const bool begins = lane.at == 0 && !lane.source;  // a trace must see that of a piece
    if (recording_ && begins) recording_->step_done(lane);
    next_step(lane);
    return true;
  }
  if (workers_.empty() || elements < kWorthHandingOver) {
    lane.status = execute_step(lane, seal);
    lane.phase.store(Phase::computed, std::memory_order_relaxed);
    if (transport_) transport_->progress(*this);  // which must not wait for more than one step
    return true;
  }
  lane.phase.store(Phase::computing, std::memory_order_relaxed);
  workers_.hand_over([this, &lane, seal] {
    lane.status = execute_step(lane, seal);
    lane.phase.store(Phase::computed, std::memory_order_release);
    eventfd_write(wake_.get(), 1);
  });
  return true;
}

Status Engine::execute_step(Lane& lane, Seal seal) noexcept {
  if (!recording_) return execute(lane, options_.rank, options_.size, seal);
  const std::int64_t begin_ns = trace::now_ns();
  const Status status = execute(lane, options_.rank, options_.size, seal);
  recording_->step_done(lane, begin_ns);
  return status;
}

void Engine::take_result(Lane& lane) {
  lane.phase.store(Phase::ready, std::memory_order_relaxed);
  if (lane.status == Status::ok) {
    return next_step(lane);
  }
  const auto& arrival = lane.slots[lane.step().slot].arrival;  // preparations never fail
  if (lane.step().op == Op::encode || !arrival) {
    fail(Error(ErrorCode::unavailable,
               fmt::format("rank {} cannot encode its numbers for {}: {}", options_.rank,
                           name_of(lane.operation->collective), describe(lane.status))),
         options_.rank);
    return;
  }
  const std::uint32_t culprit = arrival->peer;
  fail(
      Error(ErrorCode::peer_failed,
            fmt::format("a message of rank {} cannot be used in {}: {}. Do all ranks make the same "
                        "calls in the same order, with tensors of the same sizes and ways?",
                        culprit, name_of(lane.operation->collective),
                        lane.fault.empty() ? describe(lane.status) : lane.fault)),
      culprit);
}

void Engine::next_step(Lane& lane) noexcept {
  if (!is_whole(lane)) return;
  if (lane.last_use()) release(lane.slots[lane.step().slot]);
  lane.taken = 0;
  ++lane.at;
}

/// Workers leave what they spent in their lanes: statistics are this thread's.
void Engine::finish(Lane& lane) {
  auto& tensors = lane.operation->work->statistics.tensors;
  if (lane.source) {
    add(lane.spent, tensors);
    lane.operation->sources[*lane.source].prepared = true;
    --lane.operation->unprepared;
    lane.operation.reset();
    return;
  }
  for (std::uint32_t peer = 0; peer < options_.size; ++peer) {
    const auto is_left = [&](const Arrival& arrival) { return arrival.tag == lane.tag; };
    if (std::ranges::any_of(mailboxes_[peer], is_left)) return fail_by_garbage(peer, kTooMany);
  }
  lane.operation->spending.add(lane.piece, lane.spent, tensors);
  const std::shared_ptr<Operation> operation = std::move(lane.operation);
  lane.operation.reset();
  if (++operation->finished_pieces < operation->recipe->pieces.size()) return;
  std::erase(operations_, operation);
  if (recording_) recording_->operation_done(*operation);
  operation->finish(std::nullopt);
}

void Engine::release(SlotMessage& slot) noexcept {
  if (slot.arrival) transport_->release(*slot.arrival);
  slot = {};
}

// ---------------------------------------------------------------------------------------------
// Waiting

void Engine::idle() {
  check_deadlines();
  if (may_spin()) {
    const auto now = Clock::now();
    if (!spin_until_) spin_until_ = now + kSpin;
    if (now < *spin_until_) {
      sched_yield();  // a caller that was just woken may need this core
      if (Clock::now() - now > kBusyCore) spin_until_ = now;
      return;
    }
  }
  if (transport_ && !transport_->arm()) return;
  if (news_.load(std::memory_order_acquire)) return;
  pollfd polled[2] = {{wake_.get(), POLLIN, 0}, {transport_ ? transport_->event() : -1, POLLIN, 0}};
  poll(polled, 2, milliseconds_to_sleep());
  if (polled[0].revents != 0) {
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
  }
}

/// Looking around costs nobody anything while there are more cores than threads that compute.
bool Engine::may_spin() const {
  const auto awaited = [](const auto& operation) { return operation->work->waiting > 0; };
  return options_.cores >= 2 ||
         (options_.cores == 1 && std::any_of(operations_.begin(), operations_.end(), awaited));
}

int Engine::milliseconds_to_sleep() const {
  if (operations_.empty()) return 1000;
  Deadline earliest = operations_.front()->deadline;
  for (const auto& operation : operations_) earliest = std::min(earliest, operation->deadline);
  if (inquiry_) earliest = inquiry_->until;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(earliest - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 1000));
}

void Engine::check_deadlines() {
  if (operations_.empty() || broken_) return;
  const auto now = Clock::now();
  const auto late = std::find_if(operations_.begin(), operations_.end(),
                                 [&](const auto& operation) { return now >= operation->deadline; });
  if (late == operations_.end()) {
    inquiry_.reset();
  } else if (!inquiry_) {
    ask_around(now);
  } else if (now >= inquiry_->until || inquiry_->answers.size() == options_.size - 1) {
    accuse(**late);
  }
}

void Engine::ask_around(Deadline now) {
  inquiry_.emplace(Inquiry{now + kPatience, {}});
  for (std::uint32_t peer = 0; peer < options_.size; ++peer) {
    if (peer != options_.rank) transport_->ask(peer);
  }
}

/// Follows who waits for whom from this rank on, to one that does not answer or waits for nobody.
void Engine::accuse(const Operation& late) {
  const auto& answers = inquiry_->answers;
  std::optional<std::uint32_t> next = waits_for();
  std::uint32_t culprit = next.value_or(options_.rank);
  for (std::uint32_t steps = 0; next && *next != options_.rank && steps < options_.size; ++steps) {
    culprit = *next;
    const auto answer = answers.find(culprit);
    next = answer == answers.end() ? std::nullopt : answer->second;
  }
  const std::string what = name_of(late.collective);
  const std::string why = culprit == options_.rank ? "it was not done before the deadline"
                          : !answers.contains(culprit)
                              ? "it is stopped, or cut off"
                              : "it is too slow, or does not make this call";
  fail(Error(ErrorCode::timeout,
             fmt::format("rank {} held up {} beyond the deadline: {}{}", culprit, what, why,
                         answers.empty() && options_.size > 2
                             ? "; no other rank answers, either: this one may be cut off"
                             : "")),
       culprit);
}

void Engine::fail(const Error& error, std::uint32_t culprit) {
  if (broken_) return;
  broken_ = error;
  workers_.drain();  // callers may free their tensors from here on
  if (transport_) transport_->abort(culprit, error.what());
  std::vector<std::shared_ptr<Operation>> failed(operations_.begin(), operations_.end());
  broken_ = told_in_job(error, culprit);
  if (recording_) broken_ = recording_->failed(*broken_, lanes_, failed);
  for (Lane& lane : lanes_) {
    lane.operation.reset();
    lane.unsent = 0;
  }
  for (Lane& lane : preparing_) lane.operation.reset();
  operations_.clear();
  {
    const std::lock_guard lock(mutex_);
    failed.insert(failed.end(), submitted_.begin(), submitted_.end());
    submitted_.clear();
  }
  for (const auto& operation : failed) operation->finish(*broken_);
}

/// Ranks are numbered within their group, and people know them by their numbers in the job.
Error Engine::told_in_job(const Error& error, std::uint32_t culprit) const {
  const auto& job_ranks = options_.job_ranks;
  if (job_ranks.empty() || job_ranks[culprit] == culprit) return error;
  return {error.code(), fmt::format("{} (rank {} of this group is rank {} of the job)",
                                    error.what(), culprit, job_ranks[culprit])};
}

void Engine::fail_by_garbage(std::uint32_t peer, std::string_view what) {
  fail(Error(ErrorCode::peer_failed, fmt::format("rank {} sent garbage: {}", peer, what)), peer);
}

// ---------------------------------------------------------------------------------------------
// What the transport reports

bool Engine::wants(std::uint32_t, Tag tag) noexcept {
  if (broken_) return false;  // nobody will ask for it
  Tag oldest = next_number_;
  for (const Lane& lane : lanes_) {
    if (lane.active()) oldest = std::min(oldest, number_of(lane.tag));
  }
  return number_of(tag) < oldest + lanes_.size();
}

void Engine::arrived(const Arrival& arrival) noexcept {
  const std::string_view fault = fault_of(arrival);
  if (broken_ || !fault.empty()) {
    transport_->release(arrival);
    return fail_by_garbage(arrival.peer, fault);
  }
  mailboxes_[arrival.peer].push_back(arrival);
  if (number_of(arrival.tag) < next_number_) compare_calls(arrival.peer, lane_of(arrival.tag));
}

/// Fails when a peer has sent messages of this piece that are of another call.
void Engine::compare_calls(std::uint32_t peer, const Lane& lane) {
  const bool alike = std::ranges::all_of(mailboxes_[peer], [&](const Arrival& arrival) {
    return arrival.tag == lane.tag || number_of(arrival.tag) != number_of(lane.tag);
  });
  if (alike) return;
  fail(
      Error(ErrorCode::peer_failed,
            fmt::format("rank {} makes another call than {} on rank {}: make the same calls in the "
                        "same order on all ranks, with the same names, average, seed and algorithm",
                        peer, name_of(lane.operation->collective), options_.rank)),
      peer);
}

/// What is wrong with a message that no schedule has here and now; empty: nothing. A piece takes
/// all its messages before it ends. So mailboxes are bounded, whatever peers send.
std::string_view Engine::fault_of(const Arrival& arrival) const noexcept {
  const Tag number = number_of(arrival.tag);
  const Lane& lane = lane_of(arrival.tag);
  const bool begun = number < next_number_;
  if (begun && !(lane.active() && number_of(lane.tag) == number)) {
    return "a message for an operation that has ended";
  }
  std::size_t like_it = 0;
  std::size_t bytes = arrival.bytes.size();
  for (const Arrival& other : mailboxes_[arrival.peer]) {
    like_it += number_of(other.tag) == number ? 1 : 0;
    bytes += other.bytes.size();
  }
  // Where messages of all ranks are passed on, each rank's parts come to a peer by one other. They
  // fit the sender's lane.
  const std::size_t most = 2 * std::size_t{options_.size} * options_.size;
  const bool fits = like_it < most && bytes <= lanes_.size() * lane_bytes();
  return fits ? std::string_view() : kTooMany;
}

void Engine::sent(std::uint64_t ticket) noexcept {
  Lane& lane = lanes_[ticket / options_.size];
  if (lane.unsent > 0) --lane.unsent;
  --unsent_to_[ticket % options_.size];
}

void Engine::failed(const Failure& failure) noexcept {
  if (failure.fault == Fault::lost) {
    lost_[failure.peer] = failure.reason;  // matters only to those who wait for it
    return;
  }
  if (failure.fault == Fault::refused) {
    fail(Error(ErrorCode::peer_failed, failure.reason), failure.culprit);
    return;
  }
  fail_by_garbage(failure.peer, failure.reason);
}

std::optional<std::uint32_t> Engine::waits_for() noexcept {
  const Lane* oldest = nullptr;
  for (const Lane& lane : lanes_) {
    if (!lane.waits_for_a_message()) continue;
    if (oldest == nullptr || number_of(lane.tag) < number_of(oldest->tag)) oldest = &lane;
  }
  if (oldest != nullptr) return oldest->step().peer;
  for (std::uint32_t peer = 0; peer < options_.size; ++peer) {  // nor does a lane come free before
    if (unsent_to_[peer] > 0) return peer;
  }
  return std::nullopt;
}

void Engine::answered(std::uint32_t peer, std::optional<std::uint32_t> waits_for) noexcept {
  if (inquiry_) inquiry_->answers[peer] = waits_for;
}

}  // namespace gradwire::engine
