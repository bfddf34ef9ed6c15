#include "communicator_binding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "array_views.h"
#include "gradwire/communicator.h"
#include "plan/plan_reader.h"

namespace gradwire::python {
namespace {

constexpr auto kMoment = std::chrono::milliseconds(50);  // between looks for Ctrl-C

/// What a signal's handler raised where nothing can be raised, in a destructor: the next line of
/// Python raises it.
void raise_later(nb::python_error& raised) {
  auto kept = std::make_unique<nb::python_error>(raised);
  const auto raise = [](void* error) {
    const std::unique_ptr<nb::python_error> owned(static_cast<nb::python_error*>(error));
    owned->restore();
    return -1;
  };
  if (Py_AddPendingCall(raise, kept.get()) == 0) {
    static_cast<void>(kept.release());
  } else {
    kept->discard_as_unraisable("a destructor of gradwire.Work");  // too many wait already
  }
}

/// An operation with the arrays it works on: they must not go away before it is done.
class PyWork {
 public:
  PyWork(Work work, std::vector<OutputArray> arrays)
      : work_(std::move(work)), arrays_(std::move(arrays)) {
    abandoned().remove_if([](const PyWork& each) { return each.done(); });
  }
  PyWork(PyWork&&) = default;
  PyWork& operator=(PyWork&&) = delete;
  ~PyWork() {
    if (arrays_.empty()) return;  // moved from, or nothing to keep
    const nb::error_scope raised_before;
    try {
      if (!interrupted_) wait();
    } catch (const Error&) {  // whoever wanted to know has waited
    } catch (nb::python_error& raised) {
      raise_later(raised);
    }
    if (!work_.done()) abandoned().push_back(std::move(*this));
  }

  /// Answers Ctrl-C: the operation goes on, and can be waited for again.
  void wait() {
    while (!wait_a_moment()) {
      if (PyErr_CheckSignals() == 0) continue;
      interrupted_ = true;
      throw nb::python_error();
    }
  }
  bool done() const { return work_.done(); }
  nb::tuple statistics() const {
    const Statistics statistics = work_.statistics();
    nb::list tensors;
    for (const TensorStatistics& of : statistics.tensors) {
      tensors.append(nb::make_tuple(of.sent_bytes, of.energy, of.sum_energy, of.residual_energy,
                                    of.measured_energy, of.squared_error, of.saturated));
    }
    return nb::make_tuple(statistics.sent_bytes, statistics.sent_messages, statistics.seconds,
                          tensors);
  }

 private:
  /// Interrupted and deleted, under way nevertheless. Guarded by the GIL; never destroyed, since
  /// the communicator's thread may write to the arrays as long as the process lives.
  static std::list<PyWork>& abandoned() {
    static auto& works = *new std::list<PyWork>;
    return works;
  }
  bool wait_a_moment() {
    const nb::gil_scoped_release released;
    return work_.wait_for(kMoment);
  }

  Work work_;
  std::vector<OutputArray> arrays_;
  bool interrupted_ = false;
};

std::chrono::milliseconds milliseconds(double seconds) {
  if (!(seconds > 0)) throw nb::value_error("timeout is in seconds: take more than 0");
  const std::chrono::duration<double> asked(std::min(seconds, 1e9));
  return std::min(std::chrono::ceil<std::chrono::milliseconds>(asked), kMaxTimeout);
}

/// Of 0 where there is none: the communicator's.
std::chrono::milliseconds timeout_of(std::optional<double> seconds) {
  return seconds ? milliseconds(*seconds) : std::chrono::milliseconds(0);
}

OperationOptions operation_options(bool average, bool measure_error, bool exact_energies,
                                   std::uint64_t seed, std::optional<std::uint64_t> step,
                                   std::optional<double> timeout) {
  return {.seed = seed,
          .step = step,
          .timeout = timeout_of(timeout),
          .average = average,
          .measure_error = measure_error,
          .exact_energies = exact_energies};
}

/// Throws KeyboardInterrupt, or what else a signal's handler raises. Looks every `kMoment`.
std::function<void()> look_for_signals() {
  return [next = std::chrono::steady_clock::time_point()]() mutable {
    const auto now = std::chrono::steady_clock::now();
    if (now < next) return;
    next = now + kMoment;
    const nb::gil_scoped_acquire acquired;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  };
}

/// What C++ takes is narrower than Python's numbers.
template <class Number>
Number narrow(const char* name, std::int64_t value,
              std::int64_t most = std::numeric_limits<Number>::max()) {
  if (value >= 0 && value <= most) return static_cast<Number>(value);
  const std::string why =
      std::string(name) + " is " + std::to_string(value) + ": take 0 to " + std::to_string(most);
  throw nb::value_error(why.c_str());
}

std::unique_ptr<Communicator> connect(std::int64_t rank, std::int64_t size,
                                      const std::string& store, const std::string& secret,
                                      const std::string& encryption, const std::string& certificate,
                                      const std::string& private_key, const std::string& authority,
                                      const std::string& transport, const std::string& algorithm,
                                      const std::string& interface, std::int64_t port,
                                      double timeout, std::int64_t lanes, std::int64_t threads,
                                      const std::string& trace) {
  const ConnectOptions options{.rank = narrow<std::uint32_t>("rank", rank),
                               .size = narrow<std::uint32_t>("size", size),
                               .store = store,
                               .security = {.secret = secret,
                                            .encryption = encryption,
                                            .certificate = certificate,
                                            .private_key = private_key,
                                            .authority = authority},
                               .network = {.transport = transport,
                                           .interface = interface,
                                           .port = narrow<std::uint16_t>("port", port)},
                               .tuning = {.algorithm = algorithm,
                                          .lanes = narrow<std::uint32_t>("lanes", lanes),
                                          .threads = narrow<std::uint32_t>("threads", threads, 64)},
                               .timeout = milliseconds(timeout),
                               .trace = trace,
                               .while_waiting = look_for_signals()};
  const nb::gil_scoped_release released;
  return Communicator::connect(options);
}

using Names = std::vector<std::string>;
using Arrays = std::vector<nb::object>;
using Ways = std::vector<std::optional<std::string>>;  // none: the plan's

/// The arrays of one call, as tensors.
struct Call {
  std::vector<OutputArray> arrays;
  std::vector<Tensor> tensors;

  Call(const Names& names, const Arrays& objects, const Ways& ways) {
    for (std::size_t i = 0; i < objects.size(); ++i) {
      arrays.emplace_back(objects[i], "x");
      Tensor& tensor = tensors.emplace_back(Tensor{names.at(i), arrays.back().view()});
      if (ways.at(i)) tensor.way = Way::parse(*ways[i]);
    }
  }
};

PyWork all_reduce(Communicator& ranks, const Names& names, const Arrays& arrays, const Ways& ways,
                  bool average, bool measure_error, bool exact_energies, std::uint64_t seed,
                  std::optional<std::uint64_t> step, std::optional<double> timeout) {
  Call call(names, arrays, ways);
  Work work = ranks.all_reduce(
      call.tensors, operation_options(average, measure_error, exact_energies, seed, step, timeout));
  return {std::move(work), std::move(call.arrays)};
}

PyWork broadcast(Communicator& ranks, const Names& names, const Arrays& arrays, const Ways& ways,
                 std::uint32_t root, bool measure_error, bool exact_energies, std::uint64_t seed,
                 std::optional<std::uint64_t> step, std::optional<double> timeout) {
  Call call(names, arrays, ways);
  Work work =
      ranks.broadcast(call.tensors, root,
                      operation_options(false, measure_error, exact_energies, seed, step, timeout));
  return {std::move(work), std::move(call.arrays)};
}

/// One array is cut into equal parts; several are parts.
PyWork reduce_scatter(Communicator& ranks, const Names& names, const Arrays& arrays,
                      const Ways& ways, bool average, bool measure_error, bool exact_energies,
                      std::uint64_t seed, std::optional<std::uint64_t> step,
                      std::optional<double> timeout) {
  Call call(names, arrays, ways);
  const OperationOptions options =
      operation_options(average, measure_error, exact_energies, seed, step, timeout);
  Work work = call.tensors.size() == 1 ? ranks.reduce_scatter(call.tensors[0], options)
                                       : ranks.reduce_scatter(call.tensors, options);
  return {std::move(work), std::move(call.arrays)};
}

PyWork all_gather(Communicator& ranks, const Names& names, const Arrays& arrays, const Ways& ways,
                  bool measure_error, bool exact_energies, std::uint64_t seed,
                  std::optional<std::uint64_t> step, std::optional<double> timeout) {
  Call call(names, arrays, ways);
  const OperationOptions options =
      operation_options(false, measure_error, exact_energies, seed, step, timeout);
  Work work = call.tensors.size() == 1 ? ranks.all_gather(call.tensors[0], options)
                                       : ranks.all_gather(call.tensors, options);
  return {std::move(work), std::move(call.arrays)};
}

/// With the count and dtype of an array.
void register_layer(Communicator& ranks, const std::string& name, nb::handle array) {
  const TensorView view = OutputArray(array, ("layers['" + name + "']").c_str()).view();
  const LayerShape layer{name, view.count, view.dtype};
  ranks.register_layers({&layer, 1});
}

Plan read_plan_from(const std::string& source, const std::string& given) {
  if (source == "path") return Plan::read(given);
  return read_plan(parse_located_json(given, source == "dict" ? "plan" : ""));
}

void set_plan(Communicator& ranks, const std::string& source, const std::string& given,
              std::uint64_t from_step) {
  const Plan plan = read_plan_from(source, given);
  const nb::gil_scoped_release released;
  ranks.set_plan(plan, from_step);
}

nb::bytes save_residuals(const Communicator& ranks) {
  const std::vector<std::byte> saved = ranks.save_residuals();
  return nb::bytes(saved.data(), saved.size());
}

void load_residuals(Communicator& ranks, nb::handle saved) {
  const GivenBytes bytes(saved, "saved", "save_residuals");
  ranks.load_residuals(bytes.span());
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
      .def_prop_ro("ranks_per_host", &Communicator::ranks_per_host)
      .def("all_reduce", &all_reduce, "names"_a, "arrays"_a, "ways"_a, "average"_a,
           "measure_error"_a, "exact_energies"_a, "seed"_a, "step"_a.none(), "timeout"_a.none())
      .def("register_layer", &register_layer, "name"_a, "array"_a.none())
      .def("set_plan", &set_plan, "source"_a, "given"_a, "from_step"_a)
      .def("save_residuals", &save_residuals)
      .def("load_residuals", &load_residuals, "saved"_a.none())
      .def("broadcast", &broadcast, "names"_a, "arrays"_a, "ways"_a, "root"_a, "measure_error"_a,
           "exact_energies"_a, "seed"_a, "step"_a.none(), "timeout"_a.none())
      .def("reduce_scatter", &reduce_scatter, "names"_a, "arrays"_a, "ways"_a, "average"_a,
           "measure_error"_a, "exact_energies"_a, "seed"_a, "step"_a.none(), "timeout"_a.none())
      .def("all_gather", &all_gather, "names"_a, "arrays"_a, "ways"_a, "measure_error"_a,
           "exact_energies"_a, "seed"_a, "step"_a.none(), "timeout"_a.none())
      .def(
          "barrier",
          [](Communicator& ranks, std::optional<double> timeout) {
            return PyWork(ranks.barrier({.timeout = timeout_of(timeout)}), {});
          },
          "timeout"_a.none());
  module.def("connect", &connect, "rank"_a, "size"_a, "store"_a, "secret"_a, "encryption"_a,
             "certificate"_a, "private_key"_a, "authority"_a, "transport"_a, "algorithm"_a,
             "interface"_a, "port"_a, "timeout"_a, "lanes"_a, "threads"_a, "trace"_a);
}

}  // namespace gradwire::python
