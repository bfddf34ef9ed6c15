#include "plan_binding.h"

#include <pybind11/stl.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/error.h"
#include "plan/link_rate.h"
#include "plan/pattern.h"
#include "plan/plan_reader.h"
#include "plan/policies.h"
#include "plan/proposals.h"

namespace py = pybind11;

namespace gradwire::pytorch {
namespace {

using Patterns = std::vector<std::pair<std::string, std::string>>;

DensePolicy dense_policy(const std::string& way, std::vector<std::string> exact,
                         const Patterns& others) {
  DensePolicy policy{.way = Way::parse(way), .exact = std::move(exact)};
  for (const auto& [pattern, other] : others) {
    policy.others.emplace_back(pattern, Way::parse(other));
  }
  return policy;
}

SparsePolicy sparse_policy(DensePolicy dense, float density, std::string values,
                           std::uint64_t warmup, bool ramp, std::uint32_t ranks,
                           const std::string& link) {
  const LinkRate rate = parse_link_rate(link);
  if (!rate.limited()) {
    throw Error(ErrorCode::invalid_argument,
                "link is none: name its rate, such as 1gbit, or compress without residuals");
  }
  SparsePolicy policy{.dense = std::move(dense),
                      .density = density,
                      .values = std::move(values),
                      .warmup = warmup,
                      .ramp = ramp,
                      .network = {ranks, rate.bytes_per_second()}};
  static_cast<void>(sparse_codec(policy));  // a wrong value is refused at once
  return policy;
}

/// Step, way and reason of each stage.
py::list stages_of(const Plan& plan, const std::string& layer) {
  py::list stages;
  for (const Stage& stage : plan.stages_of(layer)) {
    stages.append(py::make_tuple(stage.from_step, stage.way.text(), stage.reason));
  }
  return stages;
}

/// And never makes up for it, as feedback does, or a mean over many steps.
bool loses_what_it_does_not_send(const Way& way) {
  const Traits traits = way.codec.traits();
  return traits.sparse && !traits.unbiased && !way.feedback;
}

/// Pattern and place of each entry.
std::vector<std::pair<std::string, std::string>> entries_of(const Plan& plan) {
  std::vector<std::pair<std::string, std::string>> entries;
  for (const LayerPlan& entry : plan.layers) entries.emplace_back(entry.layers, entry.place);
  return entries;
}

template <class Policy>
Plan plan_of(const Policy& policy, const std::vector<Layer>& layers) {
  return plan_for(layers, policy);
}

}  // namespace

void add_plans(py::module_& module) {
  py::class_<Way>(module, "Way")
      .def(py::init(&Way::parse), py::arg("text"))
      .def_property_readonly("codec", [](const Way& way) { return way.codec.spec(); })
      .def_property_readonly("text", &Way::text)
      .def_property_readonly("short_text", &Way::short_text)
      .def_property_readonly("lossless", [](const Way& way) { return way.codec.traits().lossless; })
      .def_property_readonly("loses_what_it_does_not_send", &loses_what_it_does_not_send)
      .def_readonly("route", &Way::route)
      .def_property_readonly("has_feedback",
                             [](const Way& way) { return way.feedback.has_value(); })
      .def_property_readonly(
          "momentum", [](const Way& way) { return way.feedback ? way.feedback->momentum : 0; });
  py::class_<Plan>(module, "Plan")
      .def_static(
          "parse",
          [](std::string_view json, std::string_view name) {
            return read_plan(parse_located_json(json, name));
          },
          py::arg("json"), py::arg("name") = "")
      .def_static("read", &Plan::read, py::arg("path"))
      .def("json", &Plan::json)
      .def("__str__", &Plan::json)
      .def("entries", &entries_of)
      .def("stages_of", &stages_of, py::arg("layer"))
      .def("has_feedback", &Plan::has_feedback)
      .def("has_momentum", &Plan::has_momentum)
      .def(
          "check_matches",
          [](const Plan& plan, const std::vector<std::string>& layers) {
            plan.check_matches(layers);
          },
          py::arg("layers"));
  py::class_<Layer>(module, "Layer")
      .def(py::init([](std::string name, std::uint64_t elements, std::uint32_t dimensions,
                       std::string obstacle) {
             return Layer{std::move(name), elements, dimensions, std::move(obstacle)};
           }),
           py::arg("name"), py::arg("elements"), py::arg("dimensions"), py::arg("obstacle") = "");
  py::class_<DensePolicy>(module, "DensePolicy")
      .def(py::init(&dense_policy), py::arg("way"), py::arg("exact"), py::arg("others"))
      .def("plan_for", &plan_of<DensePolicy>, py::arg("layers"));
  py::class_<SparsePolicy>(module, "SparsePolicy")
      .def(py::init(&sparse_policy), py::arg("dense"), py::arg("density"), py::arg("values"),
           py::arg("warmup"), py::arg("ramp"), py::arg("ranks"), py::arg("link"))
      .def("plan_for", &plan_of<SparsePolicy>, py::arg("layers"));
  module.def("matches", &matches, py::arg("pattern"), py::arg("name"));
  module.attr("least_sparse_elements") = kLeastSparseElements;
  module.attr("on_trial") = kOnTrial;
}

}  // namespace gradwire::pytorch
