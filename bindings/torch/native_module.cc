// The Python module gradwire.torch._native. Everything here is used by python/gradwire/torch only.
#include <torch/csrc/distributed/c10d/python_comm_hook.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "backend.h"
#include "channel.h"
#include "ddp_hook.h"
#include "fsdp_exchange.h"
#include "gradwire/environment.h"
#include "plan_binding.h"

namespace py = pybind11;

namespace gradwire::pytorch {

/// How pybind11 holds objects that PyTorch counts references of.
template <class T>
class NoGilPtr {
 public:
  explicit NoGilPtr(T* object) : pointer_(c10::intrusive_ptr<T>::unsafe_steal_from_new(object)) {}
  NoGilPtr(c10::intrusive_ptr<T> pointer) : pointer_(std::move(pointer)) {}
  ~NoGilPtr() {
    if (pointer_ && Py_IsInitialized() && PyGILState_Check()) {
      const py::gil_scoped_release release;
      pointer_.reset();
    }
  }
  NoGilPtr(const NoGilPtr&) = default;
  NoGilPtr(NoGilPtr&&) = default;
  NoGilPtr& operator=(const NoGilPtr&) = default;
  NoGilPtr& operator=(NoGilPtr&&) = default;
  T* get() const { return pointer_.get(); }

 private:
  c10::intrusive_ptr<T> pointer_;
};

}  // namespace gradwire::pytorch

PYBIND11_DECLARE_HOLDER_TYPE(T, gradwire::pytorch::NoGilPtr<T>, true)

namespace gradwire::pytorch {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

/// Threads that are joined may need the interpreter's lock for their last words.
template <class T>
void delete_without_gil(T* object) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    const py::gil_scoped_release release;
    delete object;
  } else {
    delete object;
  }
}

std::shared_ptr<Channel> make_channel(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                      int size, std::chrono::milliseconds timeout,
                                      std::chrono::milliseconds connect_timeout, std::string secret,
                                      std::string interface, std::string trace,
                                      std::vector<std::uint32_t> job_ranks) {
  const py::gil_scoped_release release;
  return {new Channel(store, {rank, size, timeout, connect_timeout, std::move(secret),
                              std::move(interface), std::move(trace), std::move(job_ranks)}),
          delete_without_gil<Channel>};
}

/// Raises what went wrong: `c10d::Work::create_from_future` makes a work that takes a failed future
/// for a good one.
class FutureWork final : public c10d::Work {
 public:
  explicit FutureWork(FuturePtr future) : future_(std::move(future)) {}
  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override { return future_->exception_ptr(); }
  bool wait(std::chrono::milliseconds timeout) override {
    TORCH_CHECK_VALUE(timeout == kNoTimeout,
                      "gradwire: an operation has the timeout of its process group, and wait takes "
                      "no other: give init_process_group or new_group the timeout");
    future_->waitAndThrow();
    return true;
  }
  std::vector<at::Tensor> result() override {
    future_->waitAndThrow();
    return future_->value().toTensorVector();
  }
  FuturePtr getFuture() override { return future_; }

 private:
  const FuturePtr future_;
};

WorkPtr all_reduce(const Channel& channel, const at::Tensor& tensor, const std::string& way,
                   const std::string& name, bool average, std::uint64_t seed, std::uint64_t step) {
  const std::string label = name.substr(name.find('/') + 1);  // as the caller named it
  const Tensor one{name, view_of(tensor), Way::parse(way), label};
  const auto completion = std::make_shared<Completion>(tensor);
  completion->add(channel.communicator()->all_reduce(
      {&one, 1}, {.seed = seed, .step = step, .average = average}));
  completion->seal();
  return c10::make_intrusive<FutureWork>(completion->future());
}

std::shared_ptr<ShardExchange> make_shard_exchange(
    std::shared_ptr<FsdpCompression> compression,
    const std::vector<std::pair<std::uintptr_t, std::size_t>>& parameters,
    const std::optional<std::string>& weights) {
  std::vector<Shard> shards;
  for (const auto& [parameter, elements] : parameters) {
    shards.push_back({reinterpret_cast<const void*>(parameter), elements});
  }
  const auto way = weights ? std::optional(Way::parse(*weights)) : std::nullopt;
  return std::make_shared<ShardExchange>(std::move(compression), shards, way);
}

void begin_shards(ShardExchange& exchange,
                  const std::vector<std::tuple<std::uintptr_t, at::Tensor, at::Tensor,
                                               std::optional<at::Tensor>>>& given,
                  std::vector<std::shared_ptr<Channel>> channels, bool partial) {
  std::vector<ShardGradient> gradients;
  for (const auto& [identity, parameter, numbers, sum] : given) {
    gradients.push_back({reinterpret_cast<const void*>(identity), {parameter, numbers}, sum});
  }
  const py::gil_scoped_release release;  // ranks may wait for one another
  exchange.begin(gradients, std::move(channels), partial);
}

py::bytes save_residuals(const Channel& channel) {
  std::vector<std::byte> saved;
  {
    const py::gil_scoped_release release;
    saved = channel.communicator()->save_residuals();
  }
  return {reinterpret_cast<const char*>(saved.data()), saved.size()};
}

void load_residuals(const Channel& channel, std::string_view bytes) {
  const py::gil_scoped_release release;
  channel.communicator()->load_residuals(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

/// For another number of ranks, of which averages are taken but in `all_reduce`.
py::bytes merge_residuals(const std::vector<std::string>& saved, float scale) {
  std::vector<std::span<const std::byte>> views;
  for (const std::string& bytes : saved) {
    views.push_back(std::as_bytes(std::span(bytes.data(), bytes.size())));
  }
  const std::vector<std::byte> merged = gradwire::merge_residuals(
      views, [&](const std::string& name) { return name.starts_with('/') ? 1.0f : scale; });
  return {reinterpret_cast<const char*>(merged.data()), merged.size()};
}

/// By the parameter's identity: the layer's name, elements, weight decay.
using PythonLayers =
    std::unordered_map<std::uintptr_t, std::tuple<std::string, std::uint64_t, float>>;

/// `prefix` makes names unique in the process.
void set_rules(Compression& compression, const PythonLayers& layers, const std::string& prefix,
               const Plan& plan) {
  std::unordered_map<const void*, Rule> rules;
  for (const auto& [parameter, layer] : layers) {
    const auto& [name, elements, weight_decay] = layer;
    rules[reinterpret_cast<const void*>(parameter)] = {.name = prefix + name,
                                                       .elements = elements,
                                                       .stages = plan.stages_of(name),
                                                       .weight_decay = weight_decay};
  }
  compression.set_rules(rules);
}

/// `adapted` is the way of all layers which nobody asks otherwise for; none: plans are tried.
/// `others` are patterns with ways.
void choose(Compression& compression, std::vector<Layer> layers,
            const std::optional<std::string>& adapted, std::vector<std::string> exact,
            const std::vector<std::pair<std::string, std::string>>& others,
            std::vector<std::shared_ptr<Channel>> channels, bool can_wait,
            std::function<void(const std::string&)> on_choice) {
  AutoPlanOptions options{
      .layers = std::move(layers),
      .fixed = {.way = adapted ? Way::parse(*adapted) : Way{}, .exact = std::move(exact)},
      .tries = !adapted,
      .channels = std::move(channels),
      .can_wait = can_wait,
      .on_choice = std::move(on_choice)};
  for (const auto& [pattern, way] : others) {
    options.fixed.others.emplace_back(pattern, Way::parse(way));
  }
  compression.choose_by(std::make_shared<AutoPlan>(std::move(options)));
}

/// None: nobody chooses.
std::optional<Plan> chosen_plan(const Compression& compression) {
  if (!compression.chooser()) return std::nullopt;
  return compression.chooser()->plan();
}

std::string choice(const Compression& compression) {
  return compression.chooser() ? compression.chooser()->outcome() : "";
}

std::string save_choice(const Compression& compression) {
  return compression.chooser() ? compression.chooser()->saved() : "";
}

std::string compared_choice(const Compression& compression) {
  return compression.chooser() ? compression.chooser()->compared() : "";
}

/// Three parts, for `load_choice`.
py::object save_adapting(const Compression& compression) {
  if (!compression.chooser()) return py::none();
  AutoPlan::SavedAdapting saved;
  {
    const py::gil_scoped_release release;  // ranks may wait for one another
    saved = compression.chooser()->saved_adapting();
  }
  return py::make_tuple(saved.chosen, py::bytes(saved.seen), saved.tried);
}

void load_choice(Compression& compression, const std::string& saved,
                 const std::optional<std::tuple<std::string, std::string, bool>>& adapting) {
  if (!compression.chooser() || saved.empty()) return;
  AutoPlan::SavedAdapting beside;
  if (adapting) beside = {std::get<0>(*adapting), std::get<1>(*adapting), std::get<2>(*adapting)};
  const py::gil_scoped_release release;  // ranks may wait for one another
  compression.chooser()->load(saved, beside);
  compression.take_plan(compression.chooser()->plan());
}

void count_loss(const Compression& compression, double loss) {
  if (!compression.chooser()) return;
  if (const auto sights = compression.chooser()->sights()) sights->count_loss(loss);
}

py::list totals(const Compression& compression) {
  py::list layers;
  for (const LayerTotals& layer : compression.totals()) {
    layers.append(py::make_tuple(layer.name, layer.way->codec.spec(), layer.way->short_text(),
                                 layer.elements, layer.bytes, layer.sent_bytes, layer.squared_error,
                                 layer.energy));
  }
  return layers;
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const bool is_of_job = error.code() == ErrorCode::peer_failed ||
                           error.code() == ErrorCode::timeout ||
                           error.code() == ErrorCode::unavailable;
    PyErr_SetString(is_of_job ? PyExc_RuntimeError : PyExc_ValueError, error.what());
  }
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  py::register_local_exception_translator(translate);
  py::register_exception<RankRaised>(
      module, "RankRaised", py::module_::import("torch.distributed").attr("DistBackendError"));
  configure_from_environment();
  module.attr("torch_version") = GRADWIRE_TORCH_VERSION;

  py::class_<Channel, std::shared_ptr<Channel>>(module, "Channel")
      .def(py::init(&make_channel), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("timeout"), py::arg("connect_timeout"), py::arg("secret") = "",
           py::arg("interface") = "", py::arg("trace") = "",
           py::arg("job_ranks") = std::vector<std::uint32_t>())
      .def("close", &Channel::close, NoGil())
      .def(
          "check_routes",
          [](const Channel& channel, const Plan& plan) {
            channel.communicator()->check_routes(plan);
          },
          py::arg("plan"))
      .def("give_up", &Channel::give_up, py::arg("reason"), NoGil())
      .def("all_gather_text", &Channel::all_gather_text, py::arg("text"),
           py::arg("timeout") = std::chrono::milliseconds(0), NoGil())
      .def("all_reduce", &all_reduce, py::arg("tensor"), py::arg("way"), py::arg("name"),
           py::arg("average"), py::arg("seed"), py::arg("step"), NoGil())
      .def("save_residuals", &save_residuals)
      .def("load_residuals", &load_residuals);

  py::class_<Backend, c10d::Backend, NoGilPtr<Backend>>(module, "Backend")
      .def(py::init([](int rank, int size, BackendPtr cpu, BackendPtr cuda) {
             return c10::make_intrusive<Backend>(rank, size, std::move(cpu), std::move(cuda));
           }),
           py::arg("rank"), py::arg("size"), py::arg("cpu"), py::arg("cuda") = BackendPtr())
      .def("adopt", &Backend::adopt);

  py::class_<Compression, std::shared_ptr<Compression>>(module, "Compression", py::dynamic_attr())
      .def("set_rules", &set_rules, py::arg("layers"), py::arg("prefix"), py::arg("plan"))
      .def("set_seed", &Compression::set_seed)
      .def("choose", &choose, py::arg("layers"), py::arg("adapted"), py::arg("exact"),
           py::arg("others"), py::arg("channels"), py::arg("can_wait"), py::arg("on_choice"))
      .def("choose_no_more", [](Compression& self) { self.choose_by(nullptr); })
      .def_property_readonly("chosen_plan", &chosen_plan)
      .def_property_readonly("choice", &choice)
      .def("save_choice", &save_choice)
      .def("save_adapting", &save_adapting)
      .def_property_readonly("compared_choice", &compared_choice)
      .def("load_choice", &load_choice, py::arg("saved"), py::arg("adapting") = std::nullopt)
      .def("count_loss", &count_loss, py::arg("loss"))
      .def_readwrite("before_first_exchange", &Compression::before_first_exchange)
      .def_property_readonly("steps", &Compression::steps)
      .def("has_feedback", &Compression::has_feedback)
      .def("totals", &totals);

  py::class_<DdpCompression, Compression, std::shared_ptr<DdpCompression>>(module, "DdpCompression",
                                                                           py::dynamic_attr())
      .def(py::init<std::shared_ptr<Channel>, c10::intrusive_ptr<c10d::ProcessGroup>, std::uint64_t,
                    bool>(),
           py::arg("channel"), py::arg("group"), py::arg("seed"), py::arg("copies_to_host") = false)
      .def("set_local_clip", &DdpCompression::set_local_clip)
      .def("watch", &DdpCompression::watch, py::arg("parameters"))
      .def("set_finds_unused", &DdpCompression::set_finds_unused)
      .def("attach",
           [](const std::shared_ptr<DdpCompression>& self, c10d::Reducer& reducer) {
             reducer.register_comm_hook(std::make_unique<Hook>(self));
           })
      .def("hand_over",
           [](DdpCompression& self, py::object state, py::object hook) {
             self.hook_of_user =
                 std::make_shared<c10d::PythonCommHook>(std::move(state), std::move(hook));
           })
      .def_property("counters", &Compression::steps,  // for checkpoints
                    py::cpp_function(&Compression::set_steps, NoGil()));

  py::class_<FsdpCompression, Compression, std::shared_ptr<FsdpCompression>>(
      module, "FsdpCompression", py::dynamic_attr())
      .def(py::init<int, std::uint64_t>(), py::arg("rank"), py::arg("seed"))
      .def_property("counters", &FsdpCompression::counters,
                    py::cpp_function(&FsdpCompression::set_counters, NoGil()));

  py::class_<ShardExchange, std::shared_ptr<ShardExchange>>(module, "ShardExchange")
      .def(py::init(&make_shard_exchange), py::arg("compression"),
           py::arg("parameters_and_elements"), py::arg("weights") = std::nullopt)
      .def("begin", &begin_shards, py::arg("identities_parameters_numbers_and_sums"),
           py::arg("channels"), py::arg("partial"))
      .def("reduce_scatter", &ShardExchange::reduce_scatter, py::arg("channel"), py::arg("output"),
           py::arg("input"), py::arg("op"), NoGil())
      .def("all_reduce", &ShardExchange::all_reduce, py::arg("channel"), py::arg("tensor"),
           py::arg("op"), NoGil())
      .def("all_gather", &ShardExchange::all_gather, py::arg("channel"), py::arg("output"),
           py::arg("input"), NoGil())
      .def("count_update", &ShardExchange::count_update);

  add_plans(module);
  module.def("make_trace_folder", &trace::make_trace_folder, py::arg("directory"));
  module.def("merge_residuals", &merge_residuals, py::arg("saved"), py::arg("scale"));
  module.def("is_supported", &is_supported, py::arg("tensor"));
  module.def("enter_exact", [] { ++exact_scopes; });
  module.def("leave_exact", [] { --exact_scopes; });
}

}  // namespace gradwire::pytorch
