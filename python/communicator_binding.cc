#include "communicator_binding.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "array_views.h"
#include "gradwire/communicator.h"

namespace gradwire::python {
namespace {

/// An operation with the arrays it works on: they must not go away before it is done.
class PyWork {
 public:
  PyWork(Work work, std::vector<OutputArray> arrays)
      : work_(std::move(work)), arrays_(std::move(arrays)) {}
  PyWork(PyWork&&) = default;
  PyWork& operator=(PyWork&&) = delete;
  ~PyWork() {
    if (arrays_.empty()) return;  // moved from, or nothing to keep
    try {
      wait();
    } catch (const Error&) {  // whoever wanted to know has waited
    }
  }

  void wait() {
    const nb::gil_scoped_release released;
    work_.wait();
  }
  bool done() const { return work_.done(); }
  nb::tuple statistics() const {
    const Statistics statistics = work_.statistics();
    return nb::make_tuple(statistics.sent_bytes, statistics.sent_messages, statistics.seconds);
  }

 private:
  Work work_;
  std::vector<OutputArray> arrays_;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<long>(seconds * 1000));
}

OperationOptions operation_options(std::uint64_t seed, std::uint64_t step,
                                   const std::string& algorithm, double timeout,
                                   bool average = false) {
  return {.seed = seed,
          .step = step,
          .algorithm = algorithm,
          .timeout = milliseconds(timeout),
          .average = average};
}

std::unique_ptr<Communicator> connect(std::uint32_t rank, std::uint32_t size,
                                      const std::string& store, const std::string& secret,
                                      const std::string& encryption, const std::string& certificate,
                                      const std::string& private_key, const std::string& authority,
                                      const std::string& transport, const std::string& algorithm,
                                      const std::string& interface, std::uint16_t port,
                                      double timeout, std::uint32_t lanes, std::uint32_t threads) {
  const nb::gil_scoped_release released;
  return Communicator::connect({.rank = rank,
                                .size = size,
                                .store = store,
                                .secret = secret,
                                .encryption = encryption,
                                .certificate = certificate,
                                .private_key = private_key,
                                .authority = authority,
                                .transport = transport,
                                .algorithm = algorithm,
                                .interface = interface,
                                .port = port,
                                .timeout = milliseconds(timeout),
                                .lanes = lanes,
                                .threads = threads});
}

/// The arrays of one call, as tensors.
struct Call {
  std::vector<OutputArray> arrays;
  std::vector<Tensor> tensors;

  Call(const std::vector<std::string>& names, const std::vector<nb::object>& objects,
       const std::vector<Codec>& codecs) {
    for (std::size_t i = 0; i < objects.size(); ++i) {
      arrays.emplace_back(objects[i], "x");
      tensors.push_back({names.at(i), arrays.back().view(), codecs.at(i)});
    }
  }
};

PyWork all_reduce(Communicator& ranks, const std::vector<std::string>& names,
                  const std::vector<nb::object>& arrays, const std::vector<Codec>& codecs,
                  bool feedback, float momentum, bool nesterov, bool masking, std::uint32_t reuse,
                  bool average, std::uint64_t seed, std::uint64_t step,
                  const std::string& algorithm, double timeout) {
  Call call(names, arrays, codecs);
  for (Tensor& tensor : call.tensors) {
    tensor.feedback = feedback;
    tensor.momentum = momentum;
    tensor.nesterov = nesterov;
    tensor.masking = masking;
    tensor.reuse = reuse;
  }
  Work work =
      ranks.all_reduce(call.tensors, operation_options(seed, step, algorithm, timeout, average));
  return {std::move(work), std::move(call.arrays)};
}

PyWork broadcast(Communicator& ranks, const std::vector<std::string>& names,
                 const std::vector<nb::object>& arrays, const std::vector<Codec>& codecs,
                 std::uint32_t root, std::uint64_t seed, std::uint64_t step, double timeout) {
  Call call(names, arrays, codecs);
  Work work = ranks.broadcast(call.tensors, root, operation_options(seed, step, "", timeout));
  return {std::move(work), std::move(call.arrays)};
}

nb::bytes save_residuals(const Communicator& ranks) {
  const std::vector<std::byte> saved = ranks.save_residuals();
  return nb::bytes(saved.data(), saved.size());
}

void load_residuals(Communicator& ranks, nb::handle saved) {
  const FrameBytes bytes(saved);
  ranks.load_residuals(bytes.span());
}

PyWork reduce_scatter(Communicator& ranks, const std::string& name, const nb::object& array,
                      const Codec& codec, bool average, std::uint64_t seed, std::uint64_t step,
                      double timeout) {
  Call call({name}, {array}, {codec});
  Work work =
      ranks.reduce_scatter(call.tensors[0], operation_options(seed, step, "", timeout, average));
  return {std::move(work), std::move(call.arrays)};
}

PyWork all_gather(Communicator& ranks, const std::string& name, const nb::object& array,
                  const Codec& codec, std::uint64_t seed, std::uint64_t step, double timeout) {
  Call call({name}, {array}, {codec});
  Work work = ranks.all_gather(call.tensors[0], operation_options(seed, step, "", timeout));
  return {std::move(work), std::move(call.arrays)};
}

}  // namespace

void add_communicator(nb::module_& module) {
  using nb::literals::operator""_a;
  nb::class_<PyWork>(module, "Work")
      .def("wait", &PyWork::wait)
      .def("done", &PyWork::done)
      .def("statistics", &PyWork::statistics);
  nb::class_<Communicator>(module, "Communicator")
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("size", &Communicator::size)
      .def("all_reduce", &all_reduce, "names"_a, "arrays"_a, "codecs"_a, "feedback"_a, "momentum"_a,
           "nesterov"_a, "masking"_a, "reuse"_a, "average"_a, "seed"_a, "step"_a, "algorithm"_a,
           "timeout"_a)
      .def("save_residuals", &save_residuals)
      .def("load_residuals", &load_residuals, "saved"_a.none())
      .def("broadcast", &broadcast, "names"_a, "arrays"_a, "codecs"_a, "root"_a, "seed"_a, "step"_a,
           "timeout"_a)
      .def("reduce_scatter", &reduce_scatter, "name"_a, "array"_a, "codec"_a, "average"_a, "seed"_a,
           "step"_a, "timeout"_a)
      .def("all_gather", &all_gather, "name"_a, "array"_a, "codec"_a, "seed"_a, "step"_a,
           "timeout"_a)
      .def(
          "barrier",
          [](Communicator& ranks, double timeout) {
            return PyWork(ranks.barrier(operation_options(0, 0, "", timeout)), {});
          },
          "timeout"_a);
  module.def("connect", &connect, "rank"_a, "size"_a, "store"_a, "secret"_a, "encryption"_a,
             "certificate"_a, "private_key"_a, "authority"_a, "transport"_a, "algorithm"_a,
             "interface"_a, "port"_a, "timeout"_a, "lanes"_a, "threads"_a);
}

}  // namespace gradwire::python
