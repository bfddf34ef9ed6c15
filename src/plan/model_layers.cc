#include "plan/model_layers.h"

#include <utility>

namespace gradwire {

void ModelLayers::add(double multiplications, Tensors tensors) {
  layers_.push_back({multiplications, std::move(tensors)});
}

void ModelLayers::add_linear(const std::string& name, std::size_t inputs, std::size_t outputs,
                             double rows, Bias bias) {
  const std::size_t weight = inputs * outputs;
  Tensors tensors{{name + ".weight", weight}};
  if (bias == Bias::yes) tensors.insert(tensors.begin(), {name + ".bias", outputs});
  add(static_cast<double>(weight) * rows, std::move(tensors));
}

void ModelLayers::add_convolution(const std::string& name, std::size_t inputs, std::size_t outputs,
                                  std::size_t kernel, double positions, Bias bias) {
  const std::size_t weight = inputs * outputs * kernel * kernel;
  Tensors tensors{{name + ".weight", weight}};
  if (bias == Bias::yes) tensors.emplace_back(name + ".bias", outputs);
  add(static_cast<double>(weight) * positions, std::move(tensors));
}

void ModelLayers::add_norm(const std::string& name, std::size_t width, double rows) {
  add(static_cast<double>(width) * rows, {{name + ".weight", width}, {name + ".bias", width}});
}

void ModelLayers::add_embedding(const std::string& name, std::size_t words, std::size_t width,
                                double rows) {
  add(static_cast<double>(width) * rows, {{name + ".weight", words * width}});
}

double ModelLayers::multiplications() const {
  // In the order of `workload`, so that rounding is the same and the last share is 1.
  double sum = 0;
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    sum += layer->multiplications;
  }
  return sum;
}

Workload ModelLayers::workload(std::string name, double forward_seconds,
                               double backward_seconds) const {
  Workload workload{std::move(name), {}, forward_seconds, backward_seconds};
  const double all = multiplications();
  double done = 0;
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    done += layer->multiplications;
    for (const auto& [tensor, elements] : layer->tensors) {
      workload.tensors.push_back({tensor, elements, backward_seconds * (done / all)});
    }
  }
  return workload;
}

}  // namespace gradwire
