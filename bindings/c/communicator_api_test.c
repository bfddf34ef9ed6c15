/* Communicators as a C99 program uses them: every function, and every way to misuse it. Ranks are
   threads that meet in a folder. */
#define _XOPEN_SOURCE 700 /* pthread_barrier, mkdtemp, nftw */

#include <arpa/inet.h>
#include <dirent.h>
#include <ftw.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "expect.h"
#include "gradwire/gradwire.h"

enum { COUNT = 1200, PIECE = 128, MAX_RANKS = 4, PATH_BYTES = 256 };

static char folder[] = "/tmp/communicator_api_test.XXXXXX";

/* A store that nobody has used. */
static void new_store(char* store) {
  static int stores = 0;
  snprintf(store, PATH_BYTES, "file:%s/%d", folder, stores++);
}

static gradwire_connect_options options_of(uint32_t rank, uint32_t size, const char* store) {
  gradwire_connect_options options = {
      .struct_bytes = sizeof options, .rank = rank, .size = size, .store = store};
  return options;
}

static gradwire_communicator* connect_to(const gradwire_connect_options* options) {
  gradwire_communicator* ranks = NULL;
  EXPECT_OK(gradwire_communicator_connect(options, &ranks));
  return ranks;
}

static gradwire_communicator* connect_alone(void) {
  const gradwire_connect_options options = options_of(0, 1, NULL);
  return connect_to(&options);
}

// -------------------------------------------------------------------------------------------------
// Ranks as threads

typedef void rank_body(gradwire_communicator* ranks);

typedef struct rank_thread {
  pthread_t thread;
  gradwire_connect_options options;
  rank_body* body;
} rank_thread;

static pthread_barrier_t meeting; /* of all ranks of a job, outside of gradwire */

static void meet(void) { pthread_barrier_wait(&meeting); }

static void* run_rank(void* argument) {
  const rank_thread* self = argument;
  gradwire_communicator* ranks = connect_to(&self->options);
  if (ranks == NULL) exit(summary()); /* the others would wait for it */
  self->body(ranks);
  gradwire_communicator_destroy(ranks);
  return NULL;
}

static void on_ranks(uint32_t size, const char* transport, rank_body* body) {
  rank_thread threads[MAX_RANKS];
  char store[PATH_BYTES];
  new_store(store);
  EXPECT(pthread_barrier_init(&meeting, NULL, size) == 0);
  for (uint32_t rank = 0; rank < size; ++rank) {
    threads[rank].options = options_of(rank, size, store);
    threads[rank].options.transport = transport;
    threads[rank].options.piece_elements = PIECE;
    threads[rank].body = body;
    EXPECT(pthread_create(&threads[rank].thread, NULL, run_rank, &threads[rank]) == 0);
  }
  for (uint32_t rank = 0; rank < size; ++rank) pthread_join(threads[rank].thread, NULL);
  pthread_barrier_destroy(&meeting);
}

// -------------------------------------------------------------------------------------------------
// Numbers

static float small_integer(uint32_t rank, size_t i) {
  return (float)((i * 7 + rank * 13) % 31) - 15.0F; /* sums are exact in fp32 */
}

static void fill(float* x, size_t count, uint32_t rank) {
  for (size_t i = 0; i < count; ++i) x[i] = small_integer(rank, i);
}

static float sum_at(uint32_t size, size_t i) {
  float sum = 0;
  for (uint32_t rank = 0; rank < size; ++rank) sum += small_integer(rank, i);
  return sum;
}

static int holds_sums(const float* x, size_t first, size_t count, uint32_t size) {
  for (size_t i = first; i < first + count; ++i) {
    if (x[i] != sum_at(size, i)) return 0;
  }
  return 1;
}

static gradwire_tensor tensor_of(float* x, size_t count) {
  gradwire_tensor tensor = {.name = "x", .data = x, .count = count};
  return tensor;
}

// -------------------------------------------------------------------------------------------------
// Operations

static void all_reduce_sums(gradwire_communicator* ranks) {
  const uint32_t rank = gradwire_communicator_rank(ranks), size = gradwire_communicator_size(ranks);
  float exact[COUNT], lossy[COUNT];
  uint16_t ones[10]; /* of bf16 */
  gradwire_tensor tensors[] = {
      {.name = "exact", .data = exact, .count = COUNT},
      {.name = "lossy", .data = lossy, .count = COUNT, .way = "uniform:bits=8"},
      {.name = "ones", .data = ones, .count = 10, .dtype = GRADWIRE_BF16},
      {.name = "nothing", .data = NULL, .count = 0},
  };
  fill(exact, COUNT, rank);
  fill(lossy, COUNT, rank);
  for (int i = 0; i < 10; ++i) ones[i] = 0x3F80;

  EXPECT_OK(gradwire_communicator_all_reduce(ranks, tensors, 4, NULL, NULL));
  EXPECT(holds_sums(exact, 0, COUNT, size));
  for (int i = 0; i < COUNT; ++i) {
    const float error = lossy[i] - sum_at(size, (size_t)i);
    EXPECT(error < 1.0F && error > -1.0F); /* levels are 30/255 and, of the sum, 90/255 apart */
  }
  for (int i = 0; i < 10; ++i) EXPECT(ones[i] == 0x4040); /* three */
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, NULL, 0, NULL, NULL));
}

static void parts_are_reduced_and_gathered(gradwire_communicator* ranks) {
  const uint32_t rank = gradwire_communicator_rank(ranks), size = gradwire_communicator_size(ranks);
  const size_t part = COUNT / size;
  float x[COUNT];
  const gradwire_tensor tensor = tensor_of(x, COUNT);
  fill(x, COUNT, rank);
  EXPECT_OK(gradwire_communicator_reduce_scatter(ranks, &tensor, NULL, NULL));
  EXPECT(holds_sums(x, rank * part, part, size));
  EXPECT_OK(gradwire_communicator_all_gather(ranks, &tensor, NULL, NULL));
  EXPECT(holds_sums(x, 0, COUNT, size));
}

/* Two tensors, of which each rank has two parts: x of the first, y of the second. */
static void parts_of_several_tensors_travel_together(gradwire_communicator* ranks) {
  const uint32_t rank = gradwire_communicator_rank(ranks), size = gradwire_communicator_size(ranks);
  const size_t part = COUNT / size;
  float x[COUNT], y[COUNT];
  gradwire_tensor parts[2 * MAX_RANKS];
  for (uint32_t owner = 0; owner < size; ++owner) {
    parts[2 * owner] = tensor_of(x + owner * part, part);
    parts[2 * owner + 1] = tensor_of(y + owner * part, part);
    parts[2 * owner + 1].name = "y";
  }
  fill(x, COUNT, rank);
  fill(y, COUNT, rank);
  EXPECT_OK(gradwire_communicator_reduce_scatter_parts(ranks, parts, 2 * size, NULL, NULL));
  EXPECT(holds_sums(x, rank * part, part, size));
  EXPECT(holds_sums(y, rank * part, part, size));
  EXPECT_OK(gradwire_communicator_all_gather_parts(ranks, parts, 2 * size, NULL, NULL));
  EXPECT(holds_sums(x, 0, COUNT, size));
  EXPECT(holds_sums(y, 0, COUNT, size));
}

static void broadcast_comes_from_the_root(gradwire_communicator* ranks) {
  float x[COUNT], y[COUNT];
  const gradwire_tensor tensors[] = {tensor_of(x, COUNT), tensor_of(y, COUNT)};
  fill(x, COUNT, gradwire_communicator_rank(ranks));
  fill(y, COUNT, gradwire_communicator_rank(ranks) + 1);
  EXPECT_OK(gradwire_communicator_broadcast(ranks, tensors, 2, 1, NULL, NULL));
  for (size_t i = 0; i < COUNT; ++i) {
    EXPECT(x[i] == small_integer(1, i));
    EXPECT(y[i] == small_integer(2, i));
  }
}

static int come = 0;

static void barrier_waits_for_all(gradwire_communicator* ranks) {
  const int size = (int)gradwire_communicator_size(ranks);
  __sync_fetch_and_add(&come, 1);
  EXPECT_OK(gradwire_communicator_barrier(ranks, NULL, NULL));
  EXPECT(__sync_fetch_and_add(&come, 0) >= size);
}

static void a_plan_says_how_layers_travel(gradwire_communicator* ranks) {
  const char* plan =
      "{\"gradwire_plan\": 1, \"layers\": [{\"layers\": \"body.*\", \"way\": \"sign\"}]}";
  const uint32_t rank = gradwire_communicator_rank(ranks);
  float x[COUNT], y[COUNT];
  gradwire_tensor tensor = {.name = "body.weight", .data = x, .count = COUNT};
  gradwire_tensor told = {.name = "body.weight", .data = y, .count = COUNT, .way = "sign"};
  EXPECT_OK(gradwire_communicator_register_layer(ranks, "body.weight", COUNT, GRADWIRE_F32));
  EXPECT_FAILURE(gradwire_communicator_register_layer(ranks, "body.weight", 1, GRADWIRE_F32),
                 GRADWIRE_INVALID_SETTING, "body.weight");
  EXPECT_FAILURE(gradwire_communicator_register_layer(ranks, NULL, 1, GRADWIRE_F32),
                 GRADWIRE_INVALID_ARGUMENT, "name");
  EXPECT_FAILURE(gradwire_communicator_register_layer(ranks, "x", 1, 77), GRADWIRE_INVALID_ARGUMENT,
                 "dtype");
  EXPECT_FAILURE(gradwire_communicator_set_plan(ranks, NULL, 0), GRADWIRE_INVALID_ARGUMENT, "plan");
  EXPECT_FAILURE(gradwire_communicator_set_plan(ranks, "{", 0), GRADWIRE_INVALID_SPEC, "line 1");
  EXPECT_FAILURE(gradwire_communicator_set_plan(ranks, plan, rank == 1), GRADWIRE_INVALID_SETTING,
                 "rank 1");
  EXPECT_OK(gradwire_communicator_set_plan(ranks, plan, 2));
  for (uint64_t step = 0; step < 4; ++step) {
    const gradwire_operation_options options = {.struct_bytes = sizeof options, .step = step};
    fill(x, COUNT, rank);
    fill(y, COUNT, rank);
    EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, &options, NULL));
    EXPECT_OK(gradwire_communicator_all_reduce(ranks, &told, 1, &options, NULL));
    EXPECT((memcmp(x, y, sizeof x) == 0) == (step >= 2)); /* before that there is no plan */
  }
}

static void all_operations(gradwire_communicator* ranks) {
  EXPECT(gradwire_communicator_size(ranks) == 3);
  EXPECT(gradwire_communicator_ranks_per_host(ranks) == 3);
  all_reduce_sums(ranks);
  parts_are_reduced_and_gathered(ranks);
  parts_of_several_tensors_travel_together(ranks);
  broadcast_comes_from_the_root(ranks);
  barrier_waits_for_all(ranks);
  a_plan_says_how_layers_travel(ranks); /* last: then tensors need a way or a registered layer */
}

// -------------------------------------------------------------------------------------------------
// Works

/* Rank 0 starts an operation that the others do not join before rank 0 has looked at it. */
static void a_work_is_under_way_and_then_done(gradwire_communicator* ranks) {
  gradwire_work* work = NULL;
  gradwire_statistics statistics = {0, 0, -1.0};
  size_t tensors = 0;
  float x[COUNT];
  const gradwire_tensor tensor = tensor_of(x, COUNT);
  const uint32_t rank = gradwire_communicator_rank(ranks), size = gradwire_communicator_size(ranks);
  fill(x, COUNT, rank);
  if (rank != 0) meet();
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, NULL, &work));
  if (rank == 0) {
    EXPECT(gradwire_work_done(work) == 0);
    EXPECT_FAILURE(gradwire_work_statistics(work, &statistics), GRADWIRE_INVALID_ARGUMENT,
                   "under way");
    EXPECT(statistics.seconds == -1.0);
    EXPECT_FAILURE(gradwire_work_tensor_statistics(work, NULL, 0, &tensors),
                   GRADWIRE_INVALID_ARGUMENT, "under way");
    meet();
  }
  EXPECT_OK(gradwire_work_wait(work));
  EXPECT_OK(gradwire_work_wait(work));
  EXPECT(gradwire_work_done(work) == 1);
  EXPECT(holds_sums(x, 0, COUNT, size));
  EXPECT_OK(gradwire_work_statistics(work, &statistics));
  EXPECT(statistics.sent_bytes >= sizeof x / 2 && statistics.seconds > 0);
  EXPECT(statistics.sent_messages >= COUNT / PIECE);
  EXPECT_FAILURE(gradwire_work_statistics(work, NULL), GRADWIRE_INVALID_ARGUMENT, "statistics");
  gradwire_work_destroy(work);
}

static void tensors_have_statistics_of_their_own(gradwire_communicator* ranks) {
  gradwire_operation_options options = {.struct_bytes = sizeof options, .measure_error = 1};
  gradwire_work* work = NULL;
  gradwire_tensor_statistics of[2] = {{.energy = -1.0}, {.energy = -1.0}};
  // Few numbers are added up everywhere, and rank 0 counts the sums.
  const int counts = gradwire_communicator_rank(ranks) == 0;
  size_t count = 0;
  float exact[COUNT], lossy[COUNT];
  gradwire_tensor tensors[] = {tensor_of(exact, COUNT), tensor_of(lossy, COUNT)};
  tensors[1].name = "lossy";
  tensors[1].way = "uniform:bits=2";
  fill(exact, COUNT, 0);
  fill(lossy, COUNT, 0);
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, tensors, 2, &options, &work));
  EXPECT_OK(gradwire_work_wait(work));
  EXPECT_OK(gradwire_work_tensor_statistics(work, of, 1, &count));
  EXPECT(count == 2 && of[0].sent_bytes > 0 && of[1].energy == -1.0);
  EXPECT_OK(gradwire_work_tensor_statistics(work, of, 2, &count));
  EXPECT(of[0].squared_error == 0 && of[0].energy == 0 && of[0].sum_energy == 0);
  EXPECT(of[1].sent_bytes < of[0].sent_bytes);
  EXPECT(of[1].squared_error > 0 && of[1].squared_error < of[1].measured_energy);
  EXPECT(of[1].measured_energy <= of[1].energy * 1.000001);
  EXPECT((of[1].sum_energy > 0) == counts);
  EXPECT(of[1].residual_energy == 0 && of[1].saturated == 0);
  EXPECT_OK(gradwire_work_tensor_statistics(work, NULL, 0, &count));
  EXPECT_FAILURE(gradwire_work_tensor_statistics(work, NULL, 1, &count), GRADWIRE_INVALID_ARGUMENT,
                 "tensors");
  EXPECT_FAILURE(gradwire_work_tensor_statistics(work, of, 1, NULL), GRADWIRE_INVALID_ARGUMENT,
                 "tensor_count");
  gradwire_work_destroy(work);

  options.measure_error = 0;
  options.exact_energies = 1;
  tensors[1].way = "sign+feedback";
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, tensors, 2, &options, &work));
  EXPECT_OK(gradwire_work_wait(work));
  EXPECT_OK(gradwire_work_tensor_statistics(work, of, 2, &count));
  EXPECT(count == 2 && of[0].energy > 0 && of[0].residual_energy == 0);
  EXPECT((of[0].sum_energy > 0) == counts);
  EXPECT(of[1].residual_energy > 0 && of[1].energy > 0);
  gradwire_work_destroy(work);
}

static void destroying_a_work_waits_for_it(gradwire_communicator* ranks) {
  gradwire_work* work = NULL;
  float x[COUNT];
  const gradwire_tensor tensor = tensor_of(x, COUNT);
  const uint32_t rank = gradwire_communicator_rank(ranks), size = gradwire_communicator_size(ranks);
  fill(x, COUNT, rank);
  if (rank != 0) meet();
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, NULL, &work));
  if (rank == 0) meet();
  gradwire_work_destroy(work);
  EXPECT(holds_sums(x, 0, COUNT, size));
}

/* Only the numbers must live until the operation is done. */
static void ways_names_and_options_may_go_at_once(gradwire_communicator* ranks) {
  gradwire_work* work = NULL;
  float x[COUNT];
  char name[] = "name", way[] = "fp16+route:sra"; /* fp16 holds small integers exactly */
  gradwire_tensor tensor = {.name = name, .data = x, .count = COUNT, .way = way};
  gradwire_operation_options options = {.struct_bytes = sizeof options};
  const uint32_t rank = gradwire_communicator_rank(ranks), size = gradwire_communicator_size(ranks);
  fill(x, COUNT, rank);
  if (rank != 0) meet();
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, &options, &work));
  memset(name, 'y', sizeof name - 1);
  memset(way, 'y', sizeof way - 1);
  memset(&tensor, 0xFF, sizeof tensor);
  memset(&options, 0xFF, sizeof options);
  if (rank == 0) meet();
  EXPECT_OK(gradwire_work_wait(work));
  EXPECT(holds_sums(x, 0, COUNT, size));
  gradwire_work_destroy(work);
}

static void works(gradwire_communicator* ranks) {
  /* One other rank: `meet` is for two. */
  a_work_is_under_way_and_then_done(ranks);
  tensors_have_statistics_of_their_own(ranks);
  destroying_a_work_waits_for_it(ranks);
  ways_names_and_options_may_go_at_once(ranks);
}

static void works_outlive_their_communicator(void) {
  gradwire_communicator* alone = connect_alone();
  gradwire_work* work = NULL;
  float x[COUNT];
  const gradwire_tensor tensor = tensor_of(x, COUNT);
  fill(x, COUNT, 0);
  EXPECT_OK(gradwire_communicator_all_reduce(alone, &tensor, 1, NULL, &work));
  EXPECT_OK(gradwire_work_wait(work));
  gradwire_communicator_destroy(alone);
  EXPECT_OK(gradwire_work_wait(work));
  EXPECT(gradwire_work_done(work) == 1);
  gradwire_work_destroy(work);
}

// -------------------------------------------------------------------------------------------------
// Options of operations, residuals

/* The stochastic sum of the same numbers under a seed and a step. */
static void draw(gradwire_communicator* ranks, uint64_t seed, uint64_t step, float* x) {
  gradwire_tensor tensor = tensor_of(x, COUNT);
  const gradwire_operation_options options = {
      .struct_bytes = sizeof options, .seed = seed, .step = step};
  tensor.way = "uniform:bits=2";
  fill(x, COUNT, gradwire_communicator_rank(ranks));
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, &options, NULL));
}

static void seed_and_step_choose_the_random_numbers(gradwire_communicator* ranks) {
  float first[COUNT], again[COUNT], other_seed[COUNT], other_step[COUNT];
  draw(ranks, 1, 2, first);
  draw(ranks, 1, 2, again);
  draw(ranks, 3, 2, other_seed);
  draw(ranks, 1, 4, other_step);
  EXPECT(memcmp(first, again, sizeof first) == 0);
  EXPECT(memcmp(first, other_seed, sizeof first) != 0);
  EXPECT(memcmp(first, other_step, sizeof first) != 0);
}

/* Which a program that sets nothing leaves to the communicator. */
static void operations_without_a_step_draw_new_random_numbers(gradwire_communicator* ranks) {
  float first[COUNT], second[COUNT];
  draw(ranks, 1, 0, first);
  draw(ranks, 1, 0, second);
  EXPECT(memcmp(first, second, sizeof first) != 0);
}

/* One step with a biased codec. */
static void step_with_feedback(gradwire_communicator* ranks, float* x) {
  gradwire_tensor tensor = tensor_of(x, COUNT);
  tensor.way = "uniform:bits=2,rounding=nearest+feedback";
  fill(x, COUNT, gradwire_communicator_rank(ranks));
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, NULL, NULL));
}

static void residuals_are_saved_and_restored(gradwire_communicator* ranks) {
  float first[COUNT], second[COUNT], resumed[COUNT];
  unsigned char saved[8 * COUNT + 1024], damaged[sizeof saved];
  size_t bytes = 0, again = 0;
  step_with_feedback(ranks, first);
  EXPECT_FAILURE(gradwire_communicator_save_residuals(ranks, NULL, 0, &bytes),
                 GRADWIRE_BUFFER_TOO_SMALL, "too small");
  EXPECT(bytes > 4 * COUNT && bytes <= sizeof saved);
  EXPECT_FAILURE(gradwire_communicator_save_residuals(ranks, saved, bytes - 1, &again),
                 GRADWIRE_BUFFER_TOO_SMALL, "too small");
  EXPECT(again == bytes);
  EXPECT_OK(gradwire_communicator_save_residuals(ranks, saved, bytes, &again));

  step_with_feedback(ranks, second);
  EXPECT(memcmp(first, second, sizeof first) != 0); /* something was fed back */
  EXPECT_OK(gradwire_communicator_load_residuals(ranks, saved, bytes));
  memcpy(damaged, saved, bytes);
  damaged[bytes / 2] ^= 1;
  EXPECT_FAILURE(gradwire_communicator_load_residuals(ranks, damaged, bytes), GRADWIRE_BAD_FRAME,
                 "damaged");
  EXPECT_FAILURE(gradwire_communicator_load_residuals(ranks, NULL, 0), GRADWIRE_BAD_FRAME, "no");
  step_with_feedback(ranks, resumed);
  EXPECT(memcmp(resumed, second, sizeof second) == 0);

  EXPECT_FAILURE(gradwire_communicator_save_residuals(ranks, NULL, 1, &bytes),
                 GRADWIRE_INVALID_ARGUMENT, "buffer");
  EXPECT_FAILURE(gradwire_communicator_save_residuals(ranks, saved, sizeof saved, NULL),
                 GRADWIRE_INVALID_ARGUMENT, "bytes");
  EXPECT_FAILURE(gradwire_communicator_load_residuals(ranks, NULL, 1), GRADWIRE_INVALID_ARGUMENT,
                 "saved");
}

static void what_is_fed_back_gains_momentum(gradwire_communicator* ranks) {
  const float size = (float)gradwire_communicator_size(ranks);
  float x = 1;
  gradwire_tensor tensor = tensor_of(&x, 1);
  tensor.name = "gains momentum";
  tensor.way = "none+feedback:momentum=1.5";
  EXPECT_FAILURE(gradwire_communicator_all_reduce(ranks, &tensor, 1, NULL, NULL),
                 GRADWIRE_INVALID_SPEC, "momentum=1.5");
  tensor.way = "none+feedback:momentum=0.5";
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, NULL, NULL));
  EXPECT(x == size);
  x = 1;
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, NULL, NULL));
  EXPECT(x == 1.5f * size);
  x = 1;
  tensor.way = "none+feedback:momentum=0.5,nesterov=1"; /* 1 + half of 1.75 */
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, NULL, NULL));
  EXPECT(x == 1.875f * size);
}

static void options_and_residuals(gradwire_communicator* ranks) {
  seed_and_step_choose_the_random_numbers(ranks);
  operations_without_a_step_draw_new_random_numbers(ranks);
  residuals_are_saved_and_restored(ranks);
  what_is_fed_back_gains_momentum(ranks);
}

// -------------------------------------------------------------------------------------------------
// Options that grow

/* What a program of a later version passes. */
typedef struct later_options {
  gradwire_connect_options known;
  const char* later;
} later_options;

static void options_may_come_from_another_version(void) {
  gradwire_communicator* ranks = NULL;
  later_options later = {.known = options_of(0, 1, NULL)};
  later.known.struct_bytes = sizeof later;
  EXPECT_OK(gradwire_communicator_connect(&later.known, &ranks));
  gradwire_communicator_destroy(ranks);
  ranks = NULL;
  later.later = "value";
  EXPECT_FAILURE(gradwire_communicator_connect(&later.known, &ranks), GRADWIRE_INVALID_ARGUMENT,
                 "does not know");
  EXPECT(ranks == NULL);

  /* An earlier one knew nothing of lanes. */
  later.known.struct_bytes = offsetof(gradwire_connect_options, lanes);
  later.known.lanes = 1000;
  EXPECT_OK(gradwire_communicator_connect(&later.known, &ranks));
  gradwire_communicator_destroy(ranks);
}

static void wrong_sizes_of_options_are_refused(void) {
  const size_t wrong[] = {0, 1, sizeof(gradwire_connect_options) - 1, 8192, SIZE_MAX - 7};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    gradwire_communicator* ranks = NULL;
    gradwire_connect_options options = options_of(0, 1, NULL);
    options.struct_bytes = wrong[i];
    EXPECT_FAILURE(gradwire_communicator_connect(&options, &ranks), GRADWIRE_INVALID_ARGUMENT,
                   "sizeof");
    EXPECT(ranks == NULL);
  }
}

// -------------------------------------------------------------------------------------------------
// Wrong arguments

static void expect_connect_failure(const gradwire_connect_options* options, int code,
                                   const char* words) {
  gradwire_communicator* ranks = NULL;
  EXPECT_FAILURE(gradwire_communicator_connect(options, &ranks), code, words);
  EXPECT(ranks == NULL);
}

static void wrong_connect_options_are_refused(void) {
  char store[PATH_BYTES];
  gradwire_connect_options options;
  new_store(store);
  options = options_of(0, 1, NULL);
  EXPECT_FAILURE(gradwire_communicator_connect(&options, NULL), GRADWIRE_INVALID_ARGUMENT,
                 "communicator is null");
  expect_connect_failure(NULL, GRADWIRE_INVALID_ARGUMENT, "options is null");
  options = options_of(3, 2, store);
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "rank 3 is not one of 2 ranks");
  options = options_of(0, 0, store);
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "not one of 0 ranks");
  options = options_of(0, 2, NULL);
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "take file:DIRECTORY");
  options = options_of(0, 2, "cloud:9");
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "'cloud:9'");
  options = options_of(0, 2, "file:/proc/no/such/folder");
  expect_connect_failure(&options, GRADWIRE_IO, "/proc/no/such/folder");
  options = options_of(0, 2, store);
  options.transport = "pigeon";
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "'pigeon'");
  options = options_of(0, 1, NULL);
  options.port = 65536;
  expect_connect_failure(&options, GRADWIRE_INVALID_ARGUMENT, "65535");
  options = options_of(0, 1, NULL);
  options.lanes = 65;
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "65 lanes");
  options = options_of(0, 1, NULL);
  options.threads = 65;
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "65 threads");
  options = options_of(0, 2, store);
  options.encryption = "rot13";
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "'rot13'");
  options = options_of(0, 2, store);
  options.certificate = options.private_key = "rank.pem";
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "authority");
  options.authority = "/no/such/authority.pem";
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, ".pem");
}

/* A port that the test listens on. */
static uint32_t take_port(int* listener) {
  struct sockaddr_in6 address = {.sin6_family = AF_INET6};
  socklen_t length = sizeof address;
  *listener = socket(AF_INET6, SOCK_STREAM, 0);
  EXPECT(bind(*listener, (struct sockaddr*)&address, length) == 0);
  EXPECT(listen(*listener, 1) == 0);
  EXPECT(getsockname(*listener, (struct sockaddr*)&address, &length) == 0);
  return ntohs(address.sin6_port);
}

/* Every option arrives: each makes a difference here. */
static void options_reach_the_communicator(void) {
  char store[PATH_BYTES];
  gradwire_connect_options options;
  gradwire_communicator* alone;
  int taken = -1;
  new_store(store);
  options = options_of(0, 2, store);
  options.transport = "tcp";
  options.interface = "nosuch0";
  expect_connect_failure(&options, GRADWIRE_UNAVAILABLE, "'nosuch0'");
  options.interface = NULL;
  options.port = take_port(&taken);
  expect_connect_failure(&options, GRADWIRE_UNAVAILABLE, "cannot listen");
  close(taken);
  options = options_of(0, 2, store);
  options.secret = "tea";
  options.timeout_ms = 1;
  expect_connect_failure(&options, GRADWIRE_TIMEOUT, "nobody wrote");
  options = options_of(1, 2, store);
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING,
                         "and rank 0 2 ranks, a secret and TLS by the secret");
  options = options_of(0, 1, NULL);
  options.algorithm = "magic";
  expect_connect_failure(&options, GRADWIRE_INVALID_SETTING, "'magic'");
  options.algorithm = "tree";
  alone = connect_to(&options);
  EXPECT_OK(gradwire_communicator_all_reduce(alone, NULL, 0, NULL, NULL));
  gradwire_communicator_destroy(alone);
  options = options_of(0, 1, NULL);
  options.trace = "/proc/no-such-folder";
  expect_connect_failure(&options, GRADWIRE_IO, "name a folder that can be made and written to");
}

static int is_trace(const struct dirent* entry) {
  return strstr(entry->d_name, ".gwtrace") != NULL;
}

static void a_traced_rank_leaves_a_file(void) {
  char trace[PATH_BYTES];
  struct dirent** files = NULL;
  gradwire_connect_options options = options_of(0, 1, NULL);
  snprintf(trace, sizeof trace, "%s/trace", folder);
  options.trace = trace;
  gradwire_communicator_destroy(connect_to(&options));
  EXPECT(scandir(trace, &files, is_trace, NULL) == 1);
  if (files == NULL) return;
  EXPECT(strncmp(files[0]->d_name, "rank0-", 6) == 0);
  free(files[0]);
  free(files);
}

static void null_handles_are_harmless(void) {
  const gradwire_tensor tensor = {.name = NULL};
  gradwire_work* work = NULL;
  size_t bytes = 0;
  gradwire_statistics statistics;
  gradwire_communicator_destroy(NULL);
  gradwire_work_destroy(NULL);
  EXPECT(gradwire_communicator_rank(NULL) == 0);
  EXPECT(gradwire_communicator_size(NULL) == 0);
  EXPECT(gradwire_communicator_ranks_per_host(NULL) == 0);
  EXPECT(gradwire_work_done(NULL) == 1);
#define EXPECT_REFUSED(call) EXPECT_FAILURE(call, GRADWIRE_INVALID_ARGUMENT, "is null")
  EXPECT_REFUSED(gradwire_communicator_all_reduce(NULL, &tensor, 1, NULL, &work));
  EXPECT_REFUSED(gradwire_communicator_reduce_scatter(NULL, &tensor, NULL, &work));
  EXPECT_REFUSED(gradwire_communicator_all_gather(NULL, &tensor, NULL, &work));
  EXPECT_REFUSED(gradwire_communicator_reduce_scatter_parts(NULL, &tensor, 1, NULL, &work));
  EXPECT_REFUSED(gradwire_communicator_all_gather_parts(NULL, &tensor, 1, NULL, &work));
  EXPECT_REFUSED(gradwire_communicator_broadcast(NULL, &tensor, 1, 0, NULL, &work));
  EXPECT_REFUSED(gradwire_communicator_barrier(NULL, NULL, &work));
  EXPECT_REFUSED(gradwire_communicator_save_residuals(NULL, NULL, 0, &bytes));
  EXPECT_REFUSED(gradwire_communicator_load_residuals(NULL, NULL, 0));
  EXPECT_REFUSED(gradwire_work_wait(NULL));
  EXPECT_REFUSED(gradwire_work_statistics(NULL, &statistics));
  EXPECT_REFUSED(gradwire_work_tensor_statistics(NULL, NULL, 0, &bytes));
#undef EXPECT_REFUSED
  EXPECT(work == NULL);
}

/* With every operation on tensors. */
static void expect_tensor_failure(gradwire_communicator* ranks, const gradwire_tensor* tensor,
                                  const char* words) {
  const int code = GRADWIRE_INVALID_ARGUMENT;
  gradwire_work* work = NULL;
  EXPECT_FAILURE(gradwire_communicator_all_reduce(ranks, tensor, 1, NULL, &work), code, words);
  EXPECT_FAILURE(gradwire_communicator_reduce_scatter(ranks, tensor, NULL, &work), code, words);
  EXPECT_FAILURE(gradwire_communicator_all_gather(ranks, tensor, NULL, &work), code, words);
  EXPECT_FAILURE(gradwire_communicator_broadcast(ranks, tensor, 1, 0, NULL, &work), code, words);
  EXPECT(work == NULL);
}

static void wrong_tensors_are_refused(gradwire_communicator* ranks) {
  float x[COUNT + 1];
  gradwire_tensor tensor;
  expect_tensor_failure(ranks, NULL, "null");
  tensor = tensor_of(NULL, COUNT);
  expect_tensor_failure(ranks, &tensor, "data is null");
  tensor = tensor_of(x, COUNT);
  tensor.dtype = 9;
  expect_tensor_failure(ranks, &tensor, "dtype");
  tensor.dtype = -1;
  expect_tensor_failure(ranks, &tensor, "dtype");
  tensor = tensor_of(x, COUNT);
  tensor.data = (unsigned char*)x + 1;
  expect_tensor_failure(ranks, &tensor, "aligned");
  tensor = tensor_of(x, SIZE_MAX);
  expect_tensor_failure(ranks, &tensor, "memory");
}

static void wrong_operations_are_refused(gradwire_communicator* ranks) {
  float x[COUNT + 1];
  gradwire_tensor tensor = tensor_of(x, COUNT + 1);
  gradwire_operation_options options = {.struct_bytes = sizeof options};
  gradwire_work* work = NULL;
  EXPECT_FAILURE(gradwire_communicator_reduce_scatter(ranks, &tensor, NULL, &work),
                 GRADWIRE_INVALID_SETTING, "cannot share equally");
  EXPECT_FAILURE(gradwire_communicator_all_gather(ranks, &tensor, NULL, &work),
                 GRADWIRE_INVALID_SETTING, "cannot share equally");
  EXPECT_FAILURE(gradwire_communicator_reduce_scatter_parts(ranks, &tensor, 1, NULL, &work),
                 GRADWIRE_INVALID_SETTING, "parts");
  EXPECT_FAILURE(gradwire_communicator_all_gather_parts(ranks, &tensor, 1, NULL, &work),
                 GRADWIRE_INVALID_SETTING, "parts");
  EXPECT_FAILURE(gradwire_communicator_broadcast(ranks, &tensor, 1, 2, NULL, &work),
                 GRADWIRE_INVALID_SETTING, "no rank 2");
  tensor.way = "none+route:magic";
  EXPECT_FAILURE(gradwire_communicator_all_reduce(ranks, &tensor, 1, &options, &work),
                 GRADWIRE_INVALID_SPEC, "'magic'");
  options.struct_bytes = 0;
  EXPECT_FAILURE(gradwire_communicator_barrier(ranks, &options, &work), GRADWIRE_INVALID_ARGUMENT,
                 "sizeof");
  EXPECT(work == NULL);
}

/* What was refused was not started: the ranks still agree on what comes next. */
static void wrong_arguments(gradwire_communicator* ranks) {
  if (gradwire_communicator_rank(ranks) == 0) {
    wrong_tensors_are_refused(ranks);
    wrong_operations_are_refused(ranks);
  }
  parts_are_reduced_and_gathered(ranks);
}

// -------------------------------------------------------------------------------------------------
// Other ranks that fail

static void a_rank_that_leaves_is_named(gradwire_communicator* ranks) {
  float x[COUNT];
  const gradwire_tensor tensor = tensor_of(x, COUNT);
  gradwire_work* work = NULL;
  if (gradwire_communicator_rank(ranks) == 1) return;
  fill(x, COUNT, 0);
  EXPECT_OK(gradwire_communicator_all_reduce(ranks, &tensor, 1, NULL, &work));
  EXPECT_FAILURE(gradwire_work_wait(work), GRADWIRE_PEER_FAILED, "rank 1");
  EXPECT_FAILURE(gradwire_work_wait(work), GRADWIRE_PEER_FAILED, "rank 1");
  EXPECT(gradwire_work_done(work) == 1);
  gradwire_work_destroy(work);
  EXPECT_FAILURE(gradwire_communicator_barrier(ranks, NULL, NULL), GRADWIRE_PEER_FAILED, "rank 1");
}

static void a_rank_that_does_not_call_is_named(gradwire_communicator* ranks) {
  const gradwire_operation_options options = {.struct_bytes = sizeof options, .timeout_ms = 300};
  if (gradwire_communicator_rank(ranks) == 0) {
    EXPECT_FAILURE(gradwire_communicator_barrier(ranks, &options, NULL), GRADWIRE_TIMEOUT,
                   "rank 1");
  }
  meet();
}

static void a_rank_that_never_comes_is_a_timeout(void) {
  const char* transports[] = {"shm", "tcp"};
  const time_t begun = time(NULL);
  for (int i = 0; i < 2; ++i) {
    char store[PATH_BYTES];
    gradwire_connect_options options;
    new_store(store);
    options = options_of(0, 2, store);
    options.transport = transports[i];
    options.timeout_ms = 200;
    expect_connect_failure(&options, GRADWIRE_TIMEOUT, "are all ranks running");
  }
  EXPECT(time(NULL) - begun < 30);
}

// -------------------------------------------------------------------------------------------------

static int remove_entry(const char* path, const struct stat* status, int kind, struct FTW* at) {
  (void)status;
  (void)kind;
  (void)at;
  return remove(path);
}

int main(void) {
  if (mkdtemp(folder) == NULL) return 1;
  on_ranks(3, "shm", all_operations);
  on_ranks(3, "tcp", all_operations);
  on_ranks(2, NULL, works);
  works_outlive_their_communicator();
  on_ranks(2, NULL, options_and_residuals);
  options_may_come_from_another_version();
  wrong_sizes_of_options_are_refused();
  wrong_connect_options_are_refused();
  options_reach_the_communicator();
  a_traced_rank_leaves_a_file();
  null_handles_are_harmless();
  on_ranks(2, NULL, wrong_arguments);
  on_ranks(3, "shm", a_rank_that_leaves_is_named);
  on_ranks(3, "tcp", a_rank_that_leaves_is_named);
  on_ranks(2, NULL, a_rank_that_does_not_call_is_named);
  a_rank_that_never_comes_is_a_timeout();
  on_ranks(2, NULL, wrong_arguments); /* after all that, new ones work */
  EXPECT(nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS) == 0);
  return summary();
}
