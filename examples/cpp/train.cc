// Data-parallel training by hand: a classifier of documents by their words.
//
// Every rank has documents of its own. In each step it computes the gradient of its part, all ranks
// add their gradients up, compressed on the way, and each makes the same update: replicas stay
// equal to the bit. Started once per rank, with RANK and WORLD_SIZE in the environment:
//
//   train STORE [TRANSPORT [STEPS]]        for example: train file:/shared/job42 tcp 100
#include <gradwire/communicator.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kVocabulary = 8192;  // words there are, and parameters of the model
constexpr int kWords = 64;         // per document
constexpr int kDocuments = 512;    // per rank
constexpr float kLearningRate = 8;

struct Document {
  int words[kWords];
  float label;  // 0 or 1
};

/// What the model says about a document, before the sigmoid.
float score(const Document& document, const std::vector<float>& weights) {
  float sum = 0;
  for (const int word : document.words) sum += weights[word];
  return sum / std::sqrt(float{kWords});
}

/// Documents whose labels a hidden model knows. As in any language, a few words are frequent.
std::vector<Document> documents_of(unsigned rank) {
  std::mt19937 same_on_all_ranks(1);
  std::normal_distribution<float> normal;
  std::vector<float> hidden(kVocabulary);
  for (float& weight : hidden) weight = normal(same_on_all_ranks);

  std::mt19937 own(1000 + rank);
  std::uniform_real_distribution<float> uniform;
  std::vector<Document> documents(kDocuments);
  for (Document& document : documents) {
    for (int& word : document.words) {
      word = static_cast<int>(std::pow(float{kVocabulary}, uniform(own))) - 1;
    }
    document.label = score(document, hidden) > 0 ? 1.0f : 0.0f;
  }
  return documents;
}

/// The mean loss of the documents, and its gradient.
float gradient_of(const std::vector<Document>& documents, const std::vector<float>& weights,
                  std::vector<float>& gradient) {
  std::fill(gradient.begin(), gradient.end(), 0.0f);
  float loss = 0;
  for (const Document& document : documents) {
    const float probability = 1 / (1 + std::exp(-score(document, weights)));
    loss -= std::log(document.label > 0 ? probability : 1 - probability) / kDocuments;
    const float slope = (probability - document.label) / std::sqrt(float{kWords}) / kDocuments;
    for (const int word : document.words) gradient[word] += slope;
  }
  return loss;
}

struct Run {
  std::vector<float> weights = std::vector<float>(kVocabulary);
  float first_loss = 0;  // over all ranks
  float last_loss = 0;
  double bytes_per_step = 0;  // sent by this rank
};

Run train(gradwire::Communicator& ranks, const std::vector<Document>& documents,
          const std::string& text, int steps) {
  const gradwire::Way way = gradwire::Way::parse(text);
  std::vector<float> gradient(kVocabulary);
  Run run;
  for (int step = 0; step < steps; ++step) {
    float loss = gradient_of(documents, run.weights, gradient);

    // Two tensors in one message: the gradient compressed, the loss exact.
    const gradwire::Tensor tensors[] = {{"gradient", {gradient.data(), gradient.size()}, way},
                                        {"loss", {&loss, 1}}};
    gradwire::Work work =
        ranks.all_reduce(tensors, {.seed = 1, .step = static_cast<std::uint64_t>(step)});
    work.wait();

    const float size = static_cast<float>(ranks.size());
    for (int i = 0; i < kVocabulary; ++i) run.weights[i] -= kLearningRate * gradient[i] / size;
    run.last_loss = loss / size;
    if (step == 0) run.first_loss = run.last_loss;
    run.bytes_per_step += static_cast<double>(work.statistics().sent_bytes) / steps;
  }
  return run;
}

/// Whether all ranks have the very same weights.
bool equal_on_all_ranks(gradwire::Communicator& ranks, const std::vector<float>& weights) {
  std::vector<float> all(ranks.size() * weights.size());
  std::copy(weights.begin(), weights.end(), all.begin() + ranks.rank() * weights.size());
  ranks.all_gather({"weights", {all.data(), all.size()}}).wait();
  for (unsigned rank = 0; rank < ranks.size(); ++rank) {
    const float* theirs = all.data() + rank * weights.size();
    if (std::memcmp(theirs, weights.data(), weights.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

unsigned from_environment(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::atoi(text));
}

}  // namespace

int main(int argc, char** argv) try {
  const int steps = argc > 3 ? std::atoi(argv[3]) : 200;
  if (argc < 2 || argc > 4 || steps < 1) {
    std::fprintf(stderr, "usage: %s STORE [TRANSPORT [STEPS]]\n", argv[0]);
    return 2;
  }
  const auto ranks =
      gradwire::Communicator::connect({.rank = from_environment("RANK", 0),
                                       .size = from_environment("WORLD_SIZE", 1),
                                       .store = argv[1],
                                       .network = {.transport = argc > 2 ? argv[2] : "auto"}});
  const std::vector<Document> documents = documents_of(ranks->rank());
  const bool prints = ranks->rank() == 0;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // every line at once, also through a pipe
  if (prints) {
    std::printf("%u ranks, %d documents each, %d parameters, %d steps\n", ranks->size(), kDocuments,
                kVocabulary, steps);
    std::printf("%-26s %10s %10s %12s %8s\n", "codec", "first loss", "last loss", "bytes/step",
                "of fp32");
  }
  double exact_bytes = 0;
  for (const char* codec : {"none", "uniform:bits=4,bucket=128", "grid:step=0.5"}) {
    const Run run = train(*ranks, documents, codec, steps);
    if (exact_bytes == 0) exact_bytes = run.bytes_per_step;
    if (prints) {
      std::printf("%-26s %10.4f %10.4f %12.0f %7.1f%%\n", codec, run.first_loss, run.last_loss,
                  run.bytes_per_step, 100 * run.bytes_per_step / std::max(exact_bytes, 1.0));
    }
    if (!equal_on_all_ranks(*ranks, run.weights)) {
      std::fprintf(stderr, "rank %u: %s: weights differ between ranks\n", ranks->rank(), codec);
      return 1;
    }
  }
  if (prints) std::printf("weights are equal to the bit on all ranks\n");
  return 0;
} catch (const gradwire::Error& error) {
  std::fprintf(stderr, "rank %u: %s\n", from_environment("RANK", 0), error.what());
  return 1;
}
