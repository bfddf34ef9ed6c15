#include "channel.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <optional>

#include "engine/gather_texts.h"
#include "lent_store.h"

namespace gradwire::pytorch {
namespace {

std::optional<Dtype> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Dtype::f32;
    case at::kHalf:
      return Dtype::f16;
    case at::kBFloat16:
      return Dtype::bf16;
    default:
      return std::nullopt;
  }
}

/// That a future with this tensor must know of.
std::vector<c10::Device> devices_of(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return {};
  return {tensor.device()};
}

std::exception_ptr torch_error(const std::string& text) {
  try {
    TORCH_CHECK_WITH(DistBackendError, false, "gradwire: ", text);
  } catch (...) {
    return std::current_exception();
  }
}

std::shared_ptr<Communicator> connect(const c10::intrusive_ptr<c10d::Store>& store,
                                      const ChannelOptions& options) {
  LentStore lent(store);
  try {
    return Communicator::connect({.rank = static_cast<std::uint32_t>(options.rank),
                                  .size = static_cast<std::uint32_t>(options.size),
                                  .job_ranks = options.job_ranks,
                                  .security = {.secret = options.secret},
                                  .network = {.interface = options.interface},
                                  .timeout = options.timeout,
                                  .connect_timeout = options.connect_timeout,
                                  .trace = options.trace},
                                 lent);
  } catch (const Error& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "gradwire: ", error.what());
  }
}

}  // namespace

Channel::Channel(const c10::intrusive_ptr<c10d::Store>& store, const ChannelOptions& options)
    : options_(options), communicator_(connect(store, options)) {}

std::shared_ptr<Communicator> Channel::communicator() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, communicator_ != nullptr,
                   "gradwire: the process group was shut down; make a new one, and wrap the model "
                   "again");
  return communicator_;
}

std::vector<std::string> Channel::all_gather_text(const std::string& text,
                                                  std::chrono::milliseconds timeout) const {
  const auto all = communicator();
  TORCH_CHECK_VALUE(text.size() <= engine::kLongestText, "gradwire: a text of ", text.size(),
                    " bytes is too long for other ranks");
  try {
    return engine::gather_texts(*all, text, timeout);
  } catch (const engine::GivenUp& error) {
    throw RankRaised(std::string("gradwire: ") + error.what());
  } catch (const Error& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "gradwire: ", error.what());
  }
}

void Channel::give_up(const std::string& reason) const { engine::give_up(*communicator(), reason); }

void Channel::close() {
  std::shared_ptr<Communicator> last;
  {
    const std::lock_guard lock(mutex_);
    last.swap(communicator_);
  }
}

// ---------------------------------------------------------------------------------------------

CallSpan::CallSpan(std::shared_ptr<Communicator> communicator, const std::string& what,
                   const std::string& layer, std::size_t bytes, std::uint64_t step)
    : communicator_(std::move(communicator)), profiled_(at::RecordScope::USER_SCOPE) {
  if (profiled_.isActive()) profiled_.before("gradwire: " + what);
  trace::Recorder* recorder = communicator_->recorder();
  if (recorder == nullptr) return;
  event_ = {.begin_ns = trace::now_ns(),
            .number = step,
            .bytes = bytes,
            .what = recorder->text(what),
            .layer = recorder->text(layer),
            .kind = trace::Kind::hook};
}

CallSpan::~CallSpan() {
  if (communicator_->recorder() == nullptr) return;
  event_.end_ns = trace::now_ns();
  communicator_->recorder()->add(event_);
}

// ---------------------------------------------------------------------------------------------

Completion::Completion(at::Tensor result)
    : result_(std::move(result)),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()), devices_of(result_))) {}

void Completion::show(Communicator& communicator, const std::string& layer, std::uint64_t step) {
  auto profiled = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (profiled->isActive()) {
    profiled->_setAsync();  // it ends on another thread
    profiled->before("gradwire: " + layer);
    profiled_ = std::move(profiled);
    profiler_.emplace();
  }
  recorder_ = communicator.recorder();
  if (recorder_ == nullptr) return;
  shown_ = {.begin_ns = trace::now_ns(),
            .number = step,
            .bytes = result_.nbytes(),
            .what = recorder_->text("future"),
            .layer = recorder_->text(layer),
            .kind = trace::Kind::future};
}

void Completion::end_of_show() {
  if (profiled_) {
    const at::ThreadLocalStateGuard guard(*profiler_);
    profiled_->end();
  }
  if (recorder_ == nullptr) return;
  shown_.end_ns = trace::now_ns();
  if (!first_error_.empty()) shown_.state = trace::State::unfinished;
  recorder_->add(shown_);
}

void Completion::add(Work work, std::function<void(const Work&)> then) {
  ++open_;
  work.on_done([self = shared_from_this(), work, then = std::move(then)](const Error* error) {
    if (error == nullptr && then) then(work);
    self->finish_one(error);
  });
}

void Completion::finish_one(const Error* error) {
  if (error != nullptr) {
    const std::lock_guard lock(mutex_);
    if (first_error_.empty()) first_error_ = error->what();
  }
  if (--open_ > 0) return;
  end_of_show();
  if (!first_error_.empty()) return future_->setError(torch_error(first_error_));
  try {
    if (at_end_) at_end_();
  } catch (...) {
    return future_->setError(std::current_exception());
  }
  future_->markCompleted(c10::IValue(std::vector<at::Tensor>{std::move(result_)}));
}

// ---------------------------------------------------------------------------------------------

bool is_supported(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && dtype_of(tensor.scalar_type());
}

TensorView view_of(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided && tensor.is_cpu(),
                   "gradwire compresses dense CPU tensors, not ", tensor.layout(), " ones on ",
                   tensor.device(), "; use torch.distributed.all_reduce for this one");
  const auto dtype = dtype_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(dtype.has_value(), "gradwire compresses float32, float16 and bfloat16, not ",
                   tensor.scalar_type(), "; use torch.distributed.all_reduce for this tensor");
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(),
                    "gradwire takes tensors without gaps; pass tensor.contiguous()");
  TORCH_CHECK_VALUE(!tensor.is_neg(),
                    "gradwire takes numbers as they are in memory; pass tensor.resolve_neg()");
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), *dtype};
}

}  // namespace gradwire::pytorch
