// Communicators in C: arguments are checked, the C++ interface is called, and exceptions stop.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "failure.h"
#include "gradwire/communicator.h"
#include "gradwire/gradwire.h"

struct gradwire_communicator {
  std::unique_ptr<gradwire::Communicator> ranks;
};

struct gradwire_work {
  gradwire::Work work;
};

namespace gradwire::c_api {
namespace {

constexpr std::string_view kNoCommunicator =
    "communicator is null; make one with gradwire_communicator_connect";
constexpr std::string_view kNoWork = "work is null; pass what an operation set";
constexpr std::string_view kUnderWay = "the operation is under way; wait for it first";

// -------------------------------------------------------------------------------------------------
// Structs that grow

constexpr std::size_t kMaxStructBytes = 4096;  // an uninitialised `struct_bytes` must not be read

// A field that fitted into padding would be read from programs that never set it.
static_assert(sizeof(gradwire_connect_options) ==
              offsetof(gradwire_connect_options, trace) + sizeof(const char*));
static_assert(sizeof(gradwire_operation_options) ==
              offsetof(gradwire_operation_options, exact_energies) + sizeof(std::uint64_t));

/// Reads as many fields as the caller's version has into `options`, whose others stay zero. A newer
/// program may set more fields than are known here; it must not have used them.
template <typename Options>
int read_options(const Options* from, Options& options) noexcept {
  const std::size_t bytes = from->struct_bytes;
  if (bytes == 0 || bytes % alignof(Options) != 0 || bytes > kMaxStructBytes) {
    return refuse("struct_bytes of the options is wrong; set it to the sizeof of their type");
  }
  const auto* const front = reinterpret_cast<const std::byte*>(from);
  const std::size_t known = std::min(bytes, sizeof(Options));
  if (std::any_of(front + known, front + bytes, [](std::byte b) { return b != std::byte{0}; })) {
    return refuse("the options have fields that this version of gradwire does not know");
  }
  std::memcpy(&options, front, known);
  return kOk;
}

std::string text_or(const char* text, const char* otherwise) {
  return text == nullptr ? otherwise : text;
}

std::chrono::milliseconds milliseconds(std::uint64_t count) {
  return std::chrono::milliseconds(std::min<std::uint64_t>(count, kMaxTimeout.count()));
}

/// Fields that are zero or null keep the default of `ConnectOptions`.
ConnectOptions convert(const gradwire_connect_options& from) {
  ConnectOptions to;
  to.rank = from.rank;
  to.size = from.size;
  to.store = text_or(from.store, "");
  to.security.secret = text_or(from.secret, "");
  if (from.encryption != nullptr) to.security.encryption = from.encryption;
  to.security.certificate = text_or(from.certificate, "");
  to.security.private_key = text_or(from.private_key, "");
  to.security.authority = text_or(from.authority, "");
  if (from.transport != nullptr) to.network.transport = from.transport;
  if (from.algorithm != nullptr) to.tuning.algorithm = from.algorithm;
  to.network.interface = text_or(from.interface, "");
  to.network.port = static_cast<std::uint16_t>(from.port);
  if (from.timeout_ms != 0) to.timeout = milliseconds(from.timeout_ms);
  if (from.lanes != 0) to.tuning.lanes = from.lanes;
  to.tuning.piece_elements = from.piece_elements;
  to.trace = text_or(from.trace, "");
  to.tuning.threads = static_cast<std::uint32_t>(std::min<std::size_t>(from.threads, UINT32_MAX));
  return to;
}

OperationOptions convert(const gradwire_operation_options& from) {
  return {.seed = from.seed,
          .step = from.step == 0 ? std::nullopt : std::optional(from.step),
          .timeout = milliseconds(from.timeout_ms),
          .average = from.average != 0,
          .measure_error = from.measure_error != 0,
          .exact_energies = from.exact_energies != 0};
}

// -------------------------------------------------------------------------------------------------
// Operations

Tensor convert(const gradwire_tensor& from) {
  return {.name = text_or(from.name, ""),
          .view = {from.data, from.count, static_cast<Dtype>(from.dtype)},
          .way = from.way == nullptr ? std::nullopt : std::optional(Way::parse(from.way))};
}

/// Starts what `operation(ranks, tensors, options)` starts, after all arguments have been checked.
template <typename Operation>
int start(gradwire_communicator* communicator, std::span<const gradwire_tensor> tensors,
          const gradwire_operation_options* options, gradwire_work** work, Operation operation) {
  return guarded([&] {
    if (communicator == nullptr) return refuse(kNoCommunicator);
    if (tensors.data() == nullptr && !tensors.empty()) return refuse("the tensors are null");
    std::vector<Tensor> converted;
    for (const gradwire_tensor& tensor : tensors) {
      const std::string_view fault = fault_of_numbers(tensor.data, tensor.count, tensor.dtype);
      if (!fault.empty()) return refuse(fault);
      converted.push_back(convert(tensor));
    }
    gradwire_operation_options read{};
    const int code = options == nullptr ? kOk : read_options(options, read);
    if (code != kOk) return code;
    // Before the start: afterwards nothing may fail that would leave the operation without a
    // handle.
    auto handle = std::make_unique<gradwire_work>(gradwire_work{Work(nullptr)});
    OperationOptions how = convert(read);
    const bool planned =
        std::ranges::any_of(converted, [](const Tensor& each) { return !each.way; });
    if (planned) how.step = read.step;
    handle->work = operation(*communicator->ranks, converted, how);
    if (work == nullptr) {
      handle->work.wait();
    } else {
      *work = handle.release();
    }
    return kOk;
  });
}

}  // namespace
}  // namespace gradwire::c_api

using namespace gradwire;         // NOLINT
using namespace gradwire::c_api;  // NOLINT: the functions below are the file's subject

int gradwire_communicator_connect(const gradwire_connect_options* options,
                                  gradwire_communicator** communicator) {
  return guarded([&] {
    if (options == nullptr) return refuse("options is null; it says at least rank, size and store");
    if (communicator == nullptr) return refuse("communicator is null; it receives the new one");
    gradwire_connect_options read{};
    const int code = read_options(options, read);
    if (code != kOk) return code;
    if (read.port > UINT16_MAX) return refuse("port is larger than any port; take up to 65535");
    *communicator = new gradwire_communicator{Communicator::connect(convert(read))};
    return kOk;
  });
}

void gradwire_communicator_destroy(gradwire_communicator* communicator) { delete communicator; }

uint32_t gradwire_communicator_rank(const gradwire_communicator* communicator) {
  return communicator == nullptr ? 0 : communicator->ranks->rank();
}

uint32_t gradwire_communicator_size(const gradwire_communicator* communicator) {
  return communicator == nullptr ? 0 : communicator->ranks->size();
}

uint32_t gradwire_communicator_ranks_per_host(const gradwire_communicator* communicator) {
  return communicator == nullptr ? 0 : communicator->ranks->ranks_per_host();
}

// Plans

int gradwire_communicator_register_layer(gradwire_communicator* communicator, const char* name,
                                         size_t count, int dtype) {
  return guarded([&] {
    if (communicator == nullptr) return refuse(kNoCommunicator);
    if (name == nullptr) return refuse("name is null; plans know layers by their names");
    const std::string_view fault = fault_of_numbers(nullptr, 0, dtype);
    if (!fault.empty()) return refuse(fault);
    const LayerShape layer{name, count, static_cast<Dtype>(dtype)};
    communicator->ranks->register_layers({&layer, 1});
    return kOk;
  });
}

int gradwire_communicator_set_plan(gradwire_communicator* communicator, const char* plan,
                                   uint64_t from_step) {
  return guarded([&] {
    if (communicator == nullptr) return refuse(kNoCommunicator);
    if (plan == nullptr) return refuse("plan is null; pass the text of a plan");
    communicator->ranks->set_plan(Plan::parse(plan), from_step);
    return kOk;
  });
}

// Operations

int gradwire_communicator_all_reduce(gradwire_communicator* communicator,
                                     const gradwire_tensor* tensors, size_t tensor_count,
                                     const gradwire_operation_options* options,
                                     gradwire_work** work) {
  return start(communicator, {tensors, tensor_count}, options, work,
               [](Communicator& ranks, std::span<const Tensor> read, const OperationOptions& how) {
                 return ranks.all_reduce(read, how);
               });
}

int gradwire_communicator_reduce_scatter(gradwire_communicator* communicator,
                                         const gradwire_tensor* tensor,
                                         const gradwire_operation_options* options,
                                         gradwire_work** work) {
  return start(communicator, {tensor, 1}, options, work,
               [](Communicator& ranks, std::span<const Tensor> read, const OperationOptions& how) {
                 return ranks.reduce_scatter(read[0], how);
               });
}

int gradwire_communicator_all_gather(gradwire_communicator* communicator,
                                     const gradwire_tensor* tensor,
                                     const gradwire_operation_options* options,
                                     gradwire_work** work) {
  return start(communicator, {tensor, 1}, options, work,
               [](Communicator& ranks, std::span<const Tensor> read, const OperationOptions& how) {
                 return ranks.all_gather(read[0], how);
               });
}

int gradwire_communicator_reduce_scatter_parts(gradwire_communicator* communicator,
                                               const gradwire_tensor* parts, size_t part_count,
                                               const gradwire_operation_options* options,
                                               gradwire_work** work) {
  return start(communicator, {parts, part_count}, options, work,
               [](Communicator& ranks, std::span<const Tensor> read, const OperationOptions& how) {
                 return ranks.reduce_scatter(read, how);
               });
}

int gradwire_communicator_all_gather_parts(gradwire_communicator* communicator,
                                           const gradwire_tensor* parts, size_t part_count,
                                           const gradwire_operation_options* options,
                                           gradwire_work** work) {
  return start(communicator, {parts, part_count}, options, work,
               [](Communicator& ranks, std::span<const Tensor> read, const OperationOptions& how) {
                 return ranks.all_gather(read, how);
               });
}

int gradwire_communicator_broadcast(gradwire_communicator* communicator,
                                    const gradwire_tensor* tensors, size_t tensor_count,
                                    uint32_t root, const gradwire_operation_options* options,
                                    gradwire_work** work) {
  return start(communicator, {tensors, tensor_count}, options, work,
               [root](Communicator& ranks, std::span<const Tensor> read,
                      const OperationOptions& how) { return ranks.broadcast(read, root, how); });
}

int gradwire_communicator_barrier(gradwire_communicator* communicator,
                                  const gradwire_operation_options* options, gradwire_work** work) {
  return start(communicator, {}, options, work,
               [](Communicator& ranks, std::span<const Tensor>, const OperationOptions& how) {
                 return ranks.barrier(how);
               });
}

// Works

int gradwire_work_wait(gradwire_work* work) {
  return guarded([&] {
    if (work == nullptr) return refuse(kNoWork);
    work->work.wait();
    return kOk;
  });
}

int gradwire_work_done(const gradwire_work* work) {
  return work == nullptr || work->work.done() ? 1 : 0;
}

int gradwire_work_statistics(const gradwire_work* work, gradwire_statistics* statistics) {
  return guarded([&] {
    if (work == nullptr) return refuse(kNoWork);
    if (statistics == nullptr) return refuse("statistics is null; it receives them");
    if (!work->work.done()) return refuse(kUnderWay);
    const Statistics found = work->work.statistics();
    *statistics = {found.sent_bytes, found.sent_messages, found.seconds};
    return kOk;
  });
}

int gradwire_work_tensor_statistics(const gradwire_work* work, gradwire_tensor_statistics* tensors,
                                    size_t capacity, size_t* tensor_count) {
  return guarded([&] {
    if (work == nullptr) return refuse(kNoWork);
    if (tensors == nullptr && capacity != 0) return refuse("tensors is null but capacity is not 0");
    if (tensor_count == nullptr) return refuse("tensor_count is null; it receives the number");
    if (!work->work.done()) return refuse(kUnderWay);
    const Statistics found = work->work.statistics();
    for (std::size_t i = 0; i < std::min(capacity, found.tensors.size()); ++i) {
      const TensorStatistics& of = found.tensors[i];
      tensors[i] = {of.sent_bytes,      of.energy,        of.sum_energy, of.residual_energy,
                    of.measured_energy, of.squared_error, of.saturated};
    }
    *tensor_count = found.tensors.size();
    return kOk;
  });
}

void gradwire_work_destroy(gradwire_work* work) {
  if (work == nullptr) return;
  try {
    work->work.wait();
  } catch (...) {  // whoever wanted to know has waited
  }
  delete work;
}

// Residuals

int gradwire_communicator_save_residuals(const gradwire_communicator* communicator, void* buffer,
                                         size_t capacity, size_t* bytes) {
  return guarded([&] {
    if (communicator == nullptr) return refuse(kNoCommunicator);
    if (buffer == nullptr && capacity != 0) return refuse("buffer is null but capacity is not 0");
    if (bytes == nullptr) return refuse("bytes is null; it receives the length");
    const std::vector<std::byte> saved = communicator->ranks->save_residuals();
    *bytes = saved.size();
    if (saved.size() > capacity) {
      return fail(GRADWIRE_BUFFER_TOO_SMALL, "the buffer is too small; bytes says what is needed");
    }
    std::copy(saved.begin(), saved.end(), static_cast<std::byte*>(buffer));
    return kOk;
  });
}

int gradwire_communicator_load_residuals(gradwire_communicator* communicator, const void* saved,
                                         size_t bytes) {
  return guarded([&] {
    if (communicator == nullptr) return refuse(kNoCommunicator);
    if (saved == nullptr && bytes != 0) return refuse("saved is null but bytes is not 0");
    communicator->ranks->load_residuals({static_cast<const std::byte*>(saved), bytes});
    return kOk;
  });
}
