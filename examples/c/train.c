// Data-parallel training by hand: a classifier of documents by their words.
//
// Every rank has documents of its own. In each step it computes the gradient of its part, all ranks
// add their gradients up, compressed on the way, and each makes the same update: replicas stay
// equal to the bit. Started once per rank, with RANK and WORLD_SIZE in the environment:
//
//   train STORE [TRANSPORT [STEPS]]        for example: train file:/shared/job42 tcp 100
#include <gradwire/gradwire.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  VOCABULARY = 8192,  // words there are, and parameters of the model
  WORDS = 64,         // per document
  DOCUMENTS = 512,    // per rank
};
static const float learning_rate = 8;

typedef struct document {
  int words[WORDS];
  float label;  // 0 or 1
} document;

static uint32_t from_environment(const char* name, uint32_t otherwise) {
  const char* text = getenv(name);
  return text == NULL ? otherwise : (uint32_t)atoi(text);
}

// Ends the program when a call failed. The message names the rank that is to blame, if one is.
static void check(int code) {
  if (code == GRADWIRE_OK) return;
  fprintf(stderr, "rank %u: %s\n", from_environment("RANK", 0), gradwire_last_error());
  exit(EXIT_FAILURE);
}

// -------------------------------------------------------------------------------------------------
// The model

// From 0 to 1, by a linear congruential generator.
static float uniform(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (float)(*state >> 40) / 16777216.0f;
}

// What the model says about a document, before the sigmoid.
static float score(const document* of, const float* weights) {
  float sum = 0;
  for (int i = 0; i < WORDS; ++i) sum += weights[of->words[i]];
  return sum / sqrtf(WORDS);
}

// Documents whose labels a hidden model knows. As in any language, a few words are frequent.
static void make_documents(document* documents, uint32_t rank) {
  static float hidden[VOCABULARY];
  uint64_t same_on_all_ranks = 1, own = 1000 + rank;
  for (int i = 0; i < VOCABULARY; ++i) hidden[i] = 2 * uniform(&same_on_all_ranks) - 1;
  for (int i = 0; i < DOCUMENTS; ++i) {
    for (int j = 0; j < WORDS; ++j) {
      documents[i].words[j] = (int)powf(VOCABULARY, uniform(&own)) - 1;
    }
    documents[i].label = score(&documents[i], hidden) > 0;
  }
}

// The mean loss of the documents, and its gradient.
static float compute_gradient(const document* documents, const float* weights, float* gradient) {
  float loss = 0;
  memset(gradient, 0, VOCABULARY * sizeof *gradient);
  for (const document* each = documents; each < documents + DOCUMENTS; ++each) {
    const float probability = 1 / (1 + expf(-score(each, weights)));
    const float slope = (probability - each->label) / sqrtf(WORDS) / DOCUMENTS;
    loss -= logf(each->label > 0 ? probability : 1 - probability) / DOCUMENTS;
    for (int i = 0; i < WORDS; ++i) gradient[each->words[i]] += slope;
  }
  return loss;
}

// -------------------------------------------------------------------------------------------------
// Training

typedef struct run {
  float weights[VOCABULARY];
  float first_loss, last_loss;  // over all ranks
  double bytes_per_step;        // sent by this rank
} run;

static void train(gradwire_communicator* ranks, const document* documents, const char* way,
                  uint64_t steps, run* result) {
  static float gradient[VOCABULARY];
  const float size = (float)gradwire_communicator_size(ranks);
  memset(result, 0, sizeof *result);
  for (uint64_t step = 0; step < steps; ++step) {
    float loss = compute_gradient(documents, result->weights, gradient);

    // Two tensors in one message: the gradient compressed, the loss exact.
    const gradwire_tensor tensors[] = {
        {.name = "gradient", .data = gradient, .count = VOCABULARY, .way = way},
        {.name = "loss", .data = &loss, .count = 1},
    };
    const gradwire_operation_options options = {
        .struct_bytes = sizeof options, .seed = 1, .step = step};
    gradwire_work* work = NULL;
    gradwire_statistics statistics;
    check(gradwire_communicator_all_reduce(ranks, tensors, 2, &options, &work));
    check(gradwire_work_wait(work));
    check(gradwire_work_statistics(work, &statistics));
    gradwire_work_destroy(work);

    for (int i = 0; i < VOCABULARY; ++i) result->weights[i] -= learning_rate * gradient[i] / size;
    result->last_loss = loss / size;
    if (step == 0) result->first_loss = result->last_loss;
    result->bytes_per_step += (double)statistics.sent_bytes / (double)steps;
  }
}

// Whether all ranks have the very same weights.
static int equal_on_all_ranks(gradwire_communicator* ranks, const float* weights) {
  const uint32_t size = gradwire_communicator_size(ranks);
  const size_t bytes = VOCABULARY * sizeof *weights;
  float* all = calloc(size, bytes);
  int equal = all != NULL;
  if (all == NULL) return 0;
  memcpy(all + VOCABULARY * gradwire_communicator_rank(ranks), weights, bytes);
  const gradwire_tensor tensor = {.name = "weights", .data = all, .count = VOCABULARY * size};
  check(gradwire_communicator_all_gather(ranks, &tensor, NULL, NULL));
  for (uint32_t rank = 0; rank < size; ++rank) {
    equal = equal && memcmp(all + VOCABULARY * rank, weights, bytes) == 0;
  }
  free(all);
  return equal;
}

int main(int argc, char** argv) {
  static const char* const codecs[] = {"none", "uniform:bits=4,bucket=128", "grid:step=0.5"};
  static document documents[DOCUMENTS];
  static run result;
  const int steps = argc > 3 ? atoi(argv[3]) : 200;
  if (argc < 2 || argc > 4 || steps < 1) {
    fprintf(stderr, "usage: %s STORE [TRANSPORT [STEPS]]\n", argv[0]);
    return 2;
  }
  const gradwire_connect_options options = {.struct_bytes = sizeof options,
                                            .rank = from_environment("RANK", 0),
                                            .size = from_environment("WORLD_SIZE", 1),
                                            .store = argv[1],
                                            .transport = argc > 2 ? argv[2] : NULL};
  const int prints = options.rank == 0;
  double exact_bytes = 0;
  gradwire_communicator* ranks = NULL;
  check(gradwire_communicator_connect(&options, &ranks));
  make_documents(documents, options.rank);
  setvbuf(stdout, NULL, _IOLBF, 0);  // every line at once, also through a pipe

  if (prints) {
    printf("%u ranks, %d documents each, %d parameters, %d steps\n", options.size, DOCUMENTS,
           VOCABULARY, steps);
    printf("%-26s %10s %10s %12s %8s\n", "codec", "first loss", "last loss", "bytes/step",
           "of fp32");
  }
  for (int i = 0; i < 3; ++i) {
    train(ranks, documents, codecs[i], (uint64_t)steps, &result);
    if (i == 0) exact_bytes = result.bytes_per_step;
    if (prints) {
      printf("%-26s %10.4f %10.4f %12.0f %7.1f%%\n", codecs[i], result.first_loss, result.last_loss,
             result.bytes_per_step, 100 * result.bytes_per_step / fmax(exact_bytes, 1));
    }
    if (!equal_on_all_ranks(ranks, result.weights)) {
      fprintf(stderr, "rank %u: %s: weights differ between ranks\n", options.rank, codecs[i]);
      return 1;
    }
  }
  if (prints) printf("weights are equal to the bit on all ranks\n");
  gradwire_communicator_destroy(ranks);
  return 0;
}
