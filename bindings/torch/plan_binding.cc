#include "plan_binding.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/error.h"
#include "plan/link_rate.h"
#include "plan/pattern.h"
#include "plan/plan_reader.h"
#include "plan/policies.h"

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

bool is_a(const py::handle& value, const char* kind) {
  return py::isinstance(value, py::module_::import("collections.abc").attr(kind));
}

/// A whole number from 0 on, if it is one.
std::optional<std::uint64_t> count_of(const py::handle& value) {
  if (PyIndex_Check(value.ptr()) == 0 || py::isinstance<py::bool_>(value)) return std::nullopt;
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  const std::uint64_t count = number ? PyLong_AsUnsignedLongLong(number.ptr()) : 0;
  if (PyErr_Occurred() == nullptr) return count;
  PyErr_Clear();  // it is negative, or too large, or none
  return std::nullopt;
}

/// What Python has, as JSON would have it. `place` is the expression that gives it.
LocatedJson located(const py::handle& value, const std::string& place, std::size_t level = 0) {
  using Kind = LocatedJson::Kind;
  if (level > kMostJsonLevels) refuse_at(place, "there are too many brackets in brackets");
  const auto inside = [&](const py::handle& each, const std::string& key) {
    return located(each, place + "[" + key + "]", level + 1);
  };
  LocatedJson json{.place = place};
  if (py::isinstance<py::str>(value)) {
    json.kind = Kind::text;
    json.text = value.cast<std::string>();
  } else if (is_a(value, "Mapping")) {
    json.kind = Kind::object;
    json.text = "a dict";
    for (const py::handle key : value) {
      const std::string name = py::repr(key);
      if (!py::isinstance<py::str>(key)) refuse_at(place, "keys are texts, and one is " + name);
      json.members.emplace_back(key.cast<std::string>(), inside(value[key], name));
    }
  } else if (is_a(value, "Sequence") && !py::isinstance<py::bytes>(value)) {
    json.kind = Kind::list;
    json.text = "a list";
    for (const py::handle each : value) {
      json.list.push_back(inside(each, std::to_string(json.list.size())));
    }
  } else {
    const std::optional<std::uint64_t> count = count_of(value);
    json.kind = count ? Kind::count : Kind::other;
    json.count = count.value_or(0);
    json.text = py::repr(value);
  }
  return json;
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
      .def_static("parse", &Plan::parse, py::arg("json"))
      .def_static("read", &Plan::read, py::arg("path"))
      .def_static(
          "of_dict", [](const py::object& plan) { return read_plan(located(plan, "plan")); },
          py::arg("plan"))
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
}

}  // namespace gradwire::pytorch
