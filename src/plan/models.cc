#include "plan/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>

#include "gradwire/error.h"
#include "plan/model_layers.h"

namespace gradwire {
namespace {

using Bias = ModelLayers::Bias;

double square(std::size_t side) { return static_cast<double>(side * side); }

/// torchvision's `vgg16`, 224 x 224.
void add_vgg16(ModelLayers& model) {
  struct Stage {
    std::size_t convolutions, width;
  };
  std::size_t inputs = 3, side = 224;
  int index = 0;  // in `features`, where activations and pools count, too
  for (const Stage stage : {Stage{2, 64}, {2, 128}, {3, 256}, {3, 512}, {3, 512}}) {
    for (std::size_t i = 0; i < stage.convolutions; ++i, index += 2) {
      model.add_convolution(fmt::format("features.{}", index), inputs, stage.width, 3, square(side),
                            Bias::yes);
      inputs = stage.width;
    }
    ++index;
    side /= 2;
  }
  model.add_linear("classifier.0", 512 * 7 * 7, 4096, 1);
  model.add_linear("classifier.3", 4096, 4096, 1);
  model.add_linear("classifier.6", 4096, 1000, 1);
}

/// torchvision's `resnet50` and `resnet101`, 224 x 224.
void add_resnet(ModelLayers& model, std::array<std::size_t, 4> blocks) {
  const auto add = [&](const std::string& convolution, const std::string& norm, std::size_t inputs,
                       std::size_t outputs, std::size_t kernel, std::size_t side) {
    model.add_convolution(convolution, inputs, outputs, kernel, square(side), Bias::no);
    model.add_norm(norm, outputs, square(side));
  };
  add("conv1", "bn1", 3, 64, 7, 112);
  std::size_t inputs = 64, inputs_side = 56;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    const std::size_t width = std::size_t{64} << stage, side = std::size_t{56} >> stage;
    for (std::size_t block = 0; block < blocks[stage]; ++block) {
      const std::string name = fmt::format("layer{}.{}.", stage + 1, block);
      add(name + "conv1", name + "bn1", inputs, width, 1, inputs_side);
      add(name + "conv2", name + "bn2", width, width, 3, side);
      add(name + "conv3", name + "bn3", width, 4 * width, 1, side);
      if (block == 0) {
        add(name + "downsample.0", name + "downsample.1", inputs, 4 * width, 1, side);
      }
      inputs = 4 * width;
      inputs_side = side;
    }
  }
  model.add_linear("fc", 2048, 1000, 1);
}

/// UGATIT's `ResnetGenerator`, 256 x 256, with 4 residual blocks, not its light version.
void add_generator(ModelLayers& model, const std::string& name) {
  const auto add = [&](const std::string& convolution, std::size_t inputs, std::size_t outputs,
                       std::size_t kernel, std::size_t side, Bias bias = Bias::no) {
    model.add_convolution(name + convolution, inputs, outputs, kernel, square(side), bias);
  };
  const auto add_linear = [&](const std::string& linear, std::size_t inputs, std::size_t outputs) {
    model.add_linear(name + linear, inputs, outputs, 1, Bias::no);
  };
  add(".DownBlock.1", 3, 64, 7, 256);
  add(".DownBlock.5", 64, 128, 3, 128);
  add(".DownBlock.9", 128, 256, 3, 64);
  for (int block = 12; block < 16; ++block) {
    add(fmt::format(".DownBlock.{}.conv_block.1", block), 256, 256, 3, 64);
    add(fmt::format(".DownBlock.{}.conv_block.5", block), 256, 256, 3, 64);
  }
  add_linear(".gap_fc", 256, 1);
  add_linear(".gmp_fc", 256, 1);
  add(".conv1x1", 512, 256, 1, 64, Bias::yes);
  add_linear(".FC.0", 64 * 64 * 256, 256);
  add_linear(".FC.2", 256, 256);
  add_linear(".gamma", 256, 256);
  add_linear(".beta", 256, 256);
  for (int block = 1; block <= 4; ++block) {
    for (int half = 1; half <= 2; ++half) {
      add(fmt::format(".UpBlock1_{}.conv{}", block, half), 256, 256, 3, 64);
      model.add(256 * square(64),
                {{fmt::format("{}.UpBlock1_{}.norm{}.rho", name, block, half), 256}});
    }
  }
  const auto add_iln = [&](int index, std::size_t width, std::size_t side) {
    const std::string norm = fmt::format("{}.UpBlock2.{}", name, index);
    model.add(static_cast<double>(width) * square(side),
              {{norm + ".beta", width}, {norm + ".gamma", width}, {norm + ".rho", width}});
  };
  add(".UpBlock2.2", 256, 128, 3, 128);
  add_iln(3, 128, 128);
  add(".UpBlock2.7", 128, 64, 3, 256);
  add_iln(8, 64, 256);
  add(".UpBlock2.11", 64, 3, 7, 256);
}

/// UGATIT's `Discriminator` of 256 x 256, whose weights are normed by their spectrum.
void add_discriminator(ModelLayers& model, const std::string& name, std::size_t layers) {
  const auto add = [&](const std::string& convolution, std::size_t inputs, std::size_t outputs,
                       std::size_t kernel, std::size_t side, Bias bias) {
    const std::size_t weight = inputs * outputs * kernel * kernel;
    ModelLayers::Tensors tensors;
    if (bias == Bias::yes) tensors.emplace_back(name + convolution + ".bias", outputs);
    tensors.emplace_back(name + convolution + ".weight_orig", weight);
    model.add(static_cast<double>(weight) * square(side), std::move(tensors));
  };
  std::size_t inputs = 3, outputs = 64, side = 256, index = 1;
  for (std::size_t layer = 0; layer + 2 < layers; ++layer, index += 3) {
    side /= 2;
    add(fmt::format(".model.{}", index), inputs, outputs, 4, side, Bias::yes);
    inputs = outputs;
    outputs *= 2;
  }
  side -= 1;  // from here on the stride is 1
  add(fmt::format(".model.{}", index), inputs, outputs, 4, side, Bias::yes);
  add(".gap_fc", outputs, 1, 1, 1, Bias::no);
  add(".gmp_fc", outputs, 1, 1, 1, Bias::no);
  model.add_convolution(name + ".conv1x1", 2 * outputs, outputs, 1, square(side), Bias::yes);
  add(".conv", outputs, 1, 4, side - 1, Bias::no);
}

/// https://github.com/znxlwm/UGATIT-pytorch. A step has two backward passes: the discriminators',
/// which see real and made pictures, and the generators', which are used three times each. A
/// gradient is there when its layer's last use is through; the forward pass of the generators lies
/// between both, where exchanges of the discriminators go on.
void add_ugatit(ModelLayers& model) {
  const auto add_discriminators = [](ModelLayers& to) {
    for (const char* side : {"A", "B"}) {
      add_discriminator(to, fmt::format("disG{}", side), 7);
      add_discriminator(to, fmt::format("disL{}", side), 5);
    }
  };
  ModelLayers generators, discriminators;
  add_generator(generators, "genA2B");
  add_generator(generators, "genB2A");
  add_discriminators(discriminators);
  model = generators;
  model.add_work(2 * generators.multiplications());      // backward of the other two uses
  model.add_work(3 * generators.multiplications() / 2);  // forward, which costs half of backward
  model.add_work(discriminators.multiplications());      // forward, and backward of inputs alone
  add_discriminators(model);
  model.add_work(discriminators.multiplications());  // backward of the pictures used last
}

/// `BertForPreTraining` of Hugging Face transformers, bert-base-uncased, 384 tokens as for SQuAD.
/// The paper counts 207 tensors with 420 MB: this has 420 MB in 206. Without its heads, `cls.*`, it
/// is the model of 109,482,240 parameters in 199 tensors.
void add_bert(ModelLayers& model) {
  const std::size_t width = 768, inner = 3072, words = 30522;
  const double rows = 384;
  model.add_embedding("bert.embeddings.word_embeddings", words, width, rows);
  model.add_embedding("bert.embeddings.token_type_embeddings", 2, width, rows);
  model.add_embedding("bert.embeddings.position_embeddings", 512, width, rows);
  model.add_norm("bert.embeddings.LayerNorm", width, rows);
  for (int i = 0; i < 12; ++i) {
    const std::string layer = fmt::format("bert.encoder.layer.{}.", i);
    for (const char* part : {"query", "key", "value"}) {
      model.add_linear(layer + "attention.self." + part, width, width, rows);
    }
    model.add_attention(rows, width);
    model.add_linear(layer + "attention.output.dense", width, width, rows);
    model.add_norm(layer + "attention.output.LayerNorm", width, rows);
    model.add_linear(layer + "intermediate.dense", width, inner, rows);
    model.add_linear(layer + "output.dense", inner, width, rows);
    model.add_norm(layer + "output.LayerNorm", width, rows);
  }
  model.add_linear("bert.pooler.dense", width, width, 1);
  model.add_linear("cls.predictions.transform.dense", width, width, rows);
  model.add_norm("cls.predictions.transform.LayerNorm", width, rows);
  model.add(words * width * rows, {{"cls.predictions.bias", words}});  // the weight is tied
  model.add_linear("cls.seq_relationship", width, 2, 1);
}

/// `GPT2LMHeadModel` of Hugging Face transformers, gpt2 (small), 1024 tokens; its head's weight is
/// the embedding's.
void add_gpt2(ModelLayers& model) {
  const std::size_t width = 768, words = 50257;
  const double rows = 1024;
  model.add_embedding("transformer.wte", words, width, rows);
  model.add_embedding("transformer.wpe", 1024, width, rows);
  for (int i = 0; i < 12; ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    model.add_norm(layer + "ln_1", width, rows);
    model.add_linear(layer + "attn.c_attn", width, 3 * width, rows);
    model.add_attention(rows, width);
    model.add_linear(layer + "attn.c_proj", width, width, rows);
    model.add_norm(layer + "ln_2", width, rows);
    model.add_linear(layer + "mlp.c_fc", width, 4 * width, rows);
    model.add_linear(layer + "mlp.c_proj", 4 * width, width, rows);
  }
  model.add_norm("transformer.ln_f", width, rows);
  model.add_work(words * width * rows);
}

/// The word model of awd-lstm-lm's kind that the paper trains on WikiText-2: two LSTMs of 1500, and
/// a decoder whose weight is the embedding's.
void add_lstm(ModelLayers& model) {
  const std::size_t width = 1500, gates = 4 * width, words = 33278;
  model.add_embedding("encoder", words, width, 1);
  for (int i = 0; i < 2; ++i) {
    const std::string layer = fmt::format("rnns.{}.", i);
    model.add(2 * gates * width, {{layer + "weight_ih_l0", gates * width},
                                  {layer + "weight_hh_l0", gates * width},
                                  {layer + "bias_hh_l0", gates},
                                  {layer + "bias_ih_l0", gates}});
  }
  model.add(words * width, {{"decoder.bias", words}});
}

/// torchvision's `vit_b_16`, 224 x 224: 196 patches and the class token.
void add_vit(ModelLayers& model) {
  const std::size_t width = 768;
  const double rows = 197;
  model.add_convolution("conv_proj", 3, width, 16, rows - 1, Bias::yes);
  model.add(width, {{"class_token", width}});
  model.add(width * rows, {{"encoder.pos_embedding", width * 197}});
  for (int i = 0; i < 12; ++i) {
    const std::string layer = fmt::format("encoder.layers.encoder_layer_{}.", i);
    model.add_norm(layer + "ln_1", width, rows);
    model.add(3 * width * width * rows,
              {{layer + "self_attention.in_proj_bias", 3 * width},
               {layer + "self_attention.in_proj_weight", 3 * width * width}});
    model.add_attention(rows, width);
    model.add_linear(layer + "self_attention.out_proj", width, width, rows);
    model.add_norm(layer + "ln_2", width, rows);
    model.add_linear(layer + "mlp.0", width, 4 * width, rows);
    model.add_linear(layer + "mlp.3", 4 * width, width, rows);
  }
  model.add_norm("encoder.ln", width, rows);
  model.add_linear("heads.head", width, 1000, 1);
}

struct Llama {
  const char* size;
  std::size_t layers, width, inner, heads, key_heads, words;
  bool tied;  ///< the head's weight is the embedding's
};

/// As Meta published them: 1b and 3b are Llama 3.2, 7b and 13b Llama 2, 8b and 70b Llama 3.1.
constexpr Llama kLlamas[] = {
    {"1b", 16, 2048, 8192, 32, 8, 128256, true},    {"3b", 28, 3072, 8192, 24, 8, 128256, true},
    {"7b", 32, 4096, 11008, 32, 32, 32000, false},  {"8b", 32, 4096, 14336, 32, 8, 128256, false},
    {"13b", 40, 5120, 13824, 40, 40, 32000, false}, {"70b", 80, 8192, 28672, 64, 8, 128256, false},
};

constexpr double kLlamaTokens = 4096;  // of a step and rank, in one sequence

/// `LlamaForCausalLM` of Hugging Face transformers.
void add_llama(ModelLayers& model, const Llama& llama) {
  const double rows = kLlamaTokens;
  const std::size_t width = llama.width, keys = width / llama.heads * llama.key_heads;
  const auto add_linear = [&](const std::string& name, std::size_t inputs, std::size_t outputs) {
    model.add_linear(name, inputs, outputs, rows, Bias::no);
  };
  const auto add_norm = [&](const std::string& name) {
    model.add(static_cast<double>(width) * rows, {{name + ".weight", width}});
  };
  model.add_embedding("model.embed_tokens", llama.words, width, rows);
  for (std::size_t i = 0; i < llama.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add_norm(layer + "input_layernorm");
    add_linear(layer + "self_attn.q_proj", width, width);
    add_linear(layer + "self_attn.k_proj", width, keys);
    add_linear(layer + "self_attn.v_proj", width, keys);
    model.add_attention(rows, static_cast<double>(width));
    add_linear(layer + "self_attn.o_proj", width, width);
    add_norm(layer + "post_attention_layernorm");
    add_linear(layer + "mlp.gate_proj", width, llama.inner);
    add_linear(layer + "mlp.up_proj", width, llama.inner);
    add_linear(layer + "mlp.down_proj", llama.inner, width);
  }
  add_norm("model.norm");
  if (llama.tied) {
    model.add_work(static_cast<double>(llama.words * width) * rows);
  } else {
    add_linear("lm_head", width, llama.words);
  }
}

struct Model {
  std::string name;
  std::function<void(ModelLayers&)> add_layers;
  std::optional<double> step_seconds;  ///< none: estimated
};

/// Without another source, steps take half as much again as the backward pass that the paper's
/// authors measured on V100s at its batch sizes, from the first gradient to the last: the sum of
/// `time_gap` in byteps/torch/mergeComp/scheduler/model_tensor.py of their code.
std::vector<Model> models() {
  std::vector<Model> models{
      {"vgg16", add_vgg16, 1.5 * 0.085},
      {"resnet50",
       [](ModelLayers& model) {
         add_resnet(model, {3, 4, 6, 3});
       },
       1.5 * 0.064},
      {"resnet101",
       [](ModelLayers& model) {
         add_resnet(model, {3, 4, 23, 3});
       },
       1.5 * 0.120},
      {"ugatit", add_ugatit, 1.5 * 0.434},
      {"bert-base", add_bert, 1.5 * 0.065},
      {"gpt2", add_gpt2, 1.5 * 0.211},
      {"lstm", add_lstm, 1.5 * 0.071},
      // An assumption: 32 pictures of 17.6 G multiplications at 10 of a V100's 15.7 TFLOP/s.
      {"vit-b", add_vit, 3 * 2 * 32 * 17.6e9 / 10e12},
  };
  for (const Llama& llama : kLlamas) {
    models.push_back({fmt::format("llama:{}", llama.size),
                      [&llama](ModelLayers& model) { add_llama(model, llama); }, std::nullopt});
  }
  return models;
}

/// An assumption, for 16-bit matrices: forward and backward multiply three times what forward does,
/// each with an addition, at 50 of a V100's 125 TFLOP/s.
double estimated_step_seconds(const ModelLayers& layers) {
  return 3 * 2 * layers.multiplications() / 50e12;
}

Model find_model(std::string_view name) {
  const std::vector<Model> all = models();
  const auto found = std::ranges::find(all, name, &Model::name);
  if (found != all.end()) return *found;
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no model '{}'; there are {}", name,
                                                       fmt::join(model_names(), ", ")));
}

ModelLayers layers_of(const Model& model) {
  ModelLayers layers;
  model.add_layers(layers);
  return layers;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Model& model : models()) names.push_back(model.name);
  return names;
}

double default_step_seconds(std::string_view name) {
  const Model model = find_model(name);
  return model.step_seconds ? *model.step_seconds : estimated_step_seconds(layers_of(model));
}

Workload model_workload(std::string_view name, double step_seconds) {
  const Model model = find_model(name);
  if (!(step_seconds > 0) || !std::isfinite(step_seconds)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a step of {} takes {} seconds: give more than 0, such as {:.2g}", name,
                            step_seconds, default_step_seconds(name)));
  }
  return layers_of(model).workload(model.name, step_seconds / 3, step_seconds * 2 / 3);
}

}  // namespace gradwire
