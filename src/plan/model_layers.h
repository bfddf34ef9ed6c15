// A model as its layers: from what they compute follows when backward has their gradients.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "plan/workload.h"

namespace gradwire {

/// Layers are added in the order in which forward runs them; autograd runs backward in the reverse
/// order, and has all gradients of a layer when it is through with it.
///
/// A layer's backward is taken to cost as much as its forward's multiplications of one sample:
/// elements of its weight times output positions (of a convolution) or rows (of a linear layer).
/// It multiplies twice as often, for the gradients of weights and of inputs, which is the same for
/// all layers. Activations, losses and what waits for memory are not counted.
class ModelLayers {
 public:
  using Tensors = std::vector<std::pair<std::string, std::size_t>>;

  /// The tensors in the order in which torch adds up their gradients.
  void add(double multiplications, Tensors tensors);
  /// What has no gradients of its own, such as a head whose weight is the embedding's.
  void add_work(double multiplications) { add(multiplications, {}); }

  enum class Bias : bool { no, yes };
  void add_linear(const std::string& name, std::size_t inputs, std::size_t outputs, double rows,
                  Bias bias = Bias::yes);
  void add_convolution(const std::string& name, std::size_t inputs, std::size_t outputs,
                       std::size_t kernel, double positions, Bias bias);
  /// Batch or layer norm, with weight and bias.
  void add_norm(const std::string& name, std::size_t width, double rows);
  void add_embedding(const std::string& name, std::size_t words, std::size_t width, double rows);
  /// Scores of all rows for all rows, and their weighted sums.
  void add_attention(double rows, double width) { add_work(2 * rows * rows * width); }

  double multiplications() const;

  /// `backward_seconds` are shared out by the layers' costs.
  Workload workload(std::string name, double forward_seconds, double backward_seconds) const;

 private:
  struct Layer {
    double multiplications;
    Tensors tensors;
  };

  std::vector<Layer> layers_;
};

}  // namespace gradwire
