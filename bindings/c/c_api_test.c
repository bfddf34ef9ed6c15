/* Uses the C ABI as a C99 program would: everything in gradwire.h, and every way to misuse it. */
#define _POSIX_C_SOURCE 200809L /* setenv, pthread, setrlimit */

#include "gradwire/gradwire.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "expect.h"

enum { COUNT = 1000, CAPACITY = 1 << 16 };

static const gradwire_random_key kKey = {.seed = 1, .step = 2, .tensor = 3, .rank = 4};

/* Aligned for every dtype. */
typedef union buffer {
  float f32[COUNT];
  uint16_t half[2 * COUNT];
  unsigned char bytes[4 * COUNT];
} buffer;

static buffer source, target;
static unsigned char frame[CAPACITY], other_frame[CAPACITY];

static size_t size_of(int dtype) { return dtype == GRADWIRE_F32 ? 4 : 2; }

/* 0, 1, -2 and 0.5 in turn, which every dtype holds exactly. */
static void fill(buffer* numbers, int dtype) {
  const float f32[] = {0.0F, 1.0F, -2.0F, 0.5F};
  const uint16_t f16[] = {0x0000, 0x3C00, 0xC000, 0x3800};
  const uint16_t bf16[] = {0x0000, 0x3F80, 0xC000, 0x3F00};
  for (int i = 0; i < COUNT; ++i) {
    if (dtype == GRADWIRE_F32) {
      numbers->f32[i] = f32[i % 4];
    } else {
      numbers->half[i] = (dtype == GRADWIRE_F16 ? f16 : bf16)[i % 4];
    }
  }
}

static gradwire_codec* make(const char* spec) {
  gradwire_codec* codec = NULL;
  EXPECT_OK(gradwire_codec_create(spec, &codec));
  return codec;
}

/* The frame of `count` numbers of `source`; its length. */
static size_t encode(const gradwire_codec* codec, size_t count, int dtype, unsigned char* out) {
  size_t written = 0;
  EXPECT(gradwire_codec_max_frame_bytes(codec, count) <= CAPACITY);
  EXPECT_OK(gradwire_frame_encode(codec, &source, count, dtype, &kKey, 0, out, CAPACITY, &written));
  EXPECT(written > 0 && written <= gradwire_codec_max_frame_bytes(codec, count));
  return written;
}

static int is_filled_with(const buffer* numbers, unsigned char byte) {
  for (size_t i = 0; i < sizeof(numbers->bytes); ++i) {
    if (numbers->bytes[i] != byte) return 0;
  }
  return 1;
}

// -------------------------------------------------------------------------------------------------

static void before_the_first_failure_the_message_is_empty(void) {
  EXPECT(strcmp(gradwire_last_error(), "") == 0);
}

static void version_is_a_version(void) {
  int major = -1, minor = -1, patch = -1;
  EXPECT(sscanf(gradwire_version(), "%d.%d.%d", &major, &minor, &patch) == 3);
}

static void codecs_are_listed_and_their_texts_round_trip(void) {
  size_t codecs = 0;
  for (; gradwire_codec_list(codecs) != NULL; ++codecs) {
    const char* spec = gradwire_codec_list(codecs);
    gradwire_codec* codec = make(spec);
    EXPECT(strcmp(gradwire_codec_spec(codec), spec) == 0);
    EXPECT(strlen(spec) < GRADWIRE_SPEC_BYTES);
    gradwire_codec_destroy(codec);
  }
  EXPECT(codecs >= 7);
  EXPECT(gradwire_codec_list(codecs + 1) == NULL);
  EXPECT(gradwire_codec_list(SIZE_MAX) == NULL);
}

static void codecs_have_traits(void) {
  gradwire_codec* none = make("none");
  gradwire_codec* uniform = make("uniform:bits=4,bucket=128,rounding=stochastic");
  gradwire_codec* nearest = make("uniform:bits=4,bucket=128,rounding=nearest");
  EXPECT((gradwire_codec_traits(none) & GRADWIRE_LOSSLESS) != 0);
  EXPECT((gradwire_codec_traits(none) & GRADWIRE_FIXED_SIZE) != 0);
  EXPECT((gradwire_codec_traits(none) & GRADWIRE_KEEPS_ZEROS) != 0);
  EXPECT((gradwire_codec_traits(none) & GRADWIRE_SPARSE) == 0);
  EXPECT((gradwire_codec_traits(uniform) & GRADWIRE_LOSSLESS) == 0);
  EXPECT((gradwire_codec_traits(uniform) & GRADWIRE_UNBIASED) != 0);
  EXPECT((gradwire_codec_traits(nearest) & GRADWIRE_UNBIASED) == 0);
  gradwire_codec_destroy(none);
  gradwire_codec_destroy(uniform);
  gradwire_codec_destroy(nearest);
}

static void wrong_specs_are_refused_with_what_exists(void) {
  gradwire_codec* codec = NULL;
  EXPECT_FAILURE(gradwire_codec_create("zip", &codec), GRADWIRE_INVALID_SPEC, "uniform");
  EXPECT_FAILURE(gradwire_codec_create("uniform:bits=9", &codec), GRADWIRE_INVALID_SPEC, "1 to 8");
  EXPECT_FAILURE(gradwire_codec_create("uniform:bit=4", &codec), GRADWIRE_INVALID_SPEC, "bucket");
  EXPECT_FAILURE(gradwire_codec_create("", &codec), GRADWIRE_INVALID_SPEC, "uniform");
  EXPECT_FAILURE(gradwire_codec_create(NULL, &codec), GRADWIRE_INVALID_ARGUMENT, "spec is null");
  EXPECT(codec == NULL);
  EXPECT_FAILURE(gradwire_codec_create("none", NULL), GRADWIRE_INVALID_ARGUMENT, "codec is null");
}

static void a_long_message_is_cut(void) {
  static char spec[5000];
  gradwire_codec* codec = NULL;
  memset(spec, 'x', sizeof(spec) - 1);
  EXPECT_FAILURE(gradwire_codec_create(spec, &codec), GRADWIRE_INVALID_SPEC, "unknown codec");
  EXPECT(strlen(gradwire_last_error()) == 1023);
}

static void null_codecs_are_harmless(void) {
  size_t written = 77;
  gradwire_codec* codec = NULL;
  gradwire_codec_destroy(NULL);
  EXPECT(strcmp(gradwire_codec_spec(NULL), "") == 0);
  EXPECT(gradwire_codec_traits(NULL) == 0);
  EXPECT(gradwire_codec_max_frame_bytes(NULL, 10) == 0);
  EXPECT_FAILURE(
      gradwire_frame_encode(NULL, &source, 1, GRADWIRE_F32, &kKey, 0, frame, CAPACITY, &written),
      GRADWIRE_INVALID_ARGUMENT, "codec is null");
  EXPECT_FAILURE(gradwire_codec_fit(NULL, &source, 1, GRADWIRE_F32, &codec),
                 GRADWIRE_INVALID_ARGUMENT, "codec is null");
  EXPECT(written == 77 && codec == NULL);
}

static void size_bounds_do_not_overflow(void) {
  gradwire_codec* codec = make("none");
  gradwire_segment segments[2] = {{.codec = codec, .count = SIZE_MAX}, {.codec = codec}};
  EXPECT(gradwire_codec_max_frame_bytes(codec, SIZE_MAX) == SIZE_MAX);
  EXPECT(gradwire_codec_max_frame_bytes(codec, COUNT) >= sizeof(source.f32));
  EXPECT(gradwire_segments_max_frame_bytes(segments, 2) == SIZE_MAX);
  EXPECT(gradwire_segments_max_frame_bytes(NULL, 0) > 0);
  gradwire_codec_destroy(codec);
}

// -------------------------------------------------------------------------------------------------

static void check_round_trip(const gradwire_codec* codec, size_t count, int dtype) {
  size_t segment_count = 0, frame_bytes = 0;
  gradwire_segment_info info;
  fill(&source, dtype);
  const size_t bytes = encode(codec, count, dtype, frame);
  EXPECT(encode(codec, count, dtype, other_frame) == bytes);
  EXPECT(memcmp(frame, other_frame, bytes) == 0);

  EXPECT_OK(gradwire_frame_inspect(frame, bytes, &info, 1, &segment_count, &frame_bytes));
  EXPECT(segment_count == 1 && frame_bytes == bytes);
  EXPECT(info.dtype == dtype && info.count == count && info.payload_bytes < bytes);

  memset(&target, 0x55, sizeof(target));
  EXPECT_OK(gradwire_frame_decode(frame, bytes, &target, count, dtype));
  if (gradwire_codec_traits(codec) & GRADWIRE_LOSSLESS) {
    EXPECT(memcmp(&source, &target, count * size_of(dtype)) == 0);
  }
  const size_t end = count * size_of(dtype);
  EXPECT(end == sizeof(target) || target.bytes[end] == 0x55);
}

/* Numbers lie in [-2, 1], so an error beyond 3 is none of rounding. */
static void check_decode_add(const gradwire_codec* codec, size_t count, int dtype) {
  static float decoded[COUNT], sum[COUNT];
  fill(&source, dtype);
  const size_t bytes = encode(codec, count, dtype, frame);
  for (size_t i = 0; i < count; ++i) sum[i] = 8.0F;
  EXPECT_OK(gradwire_frame_decode(frame, bytes, decoded, count, GRADWIRE_F32));
  EXPECT_OK(gradwire_frame_decode_add(frame, bytes, sum, count, GRADWIRE_F32));
  int sums_hold = 1, bounds_hold = 1;
  for (size_t i = 0; i < count; ++i) {
    const float exact[] = {0.0F, 1.0F, -2.0F, 0.5F};
    sums_hold &= sum[i] == 8.0F + decoded[i];
    bounds_hold &= decoded[i] - exact[i % 4] <= 3.0F && exact[i % 4] - decoded[i] <= 3.0F;
  }
  EXPECT(sums_hold);
  EXPECT(bounds_hold);
}

static void every_codec_dtype_and_count_round_trips(void) {
  const size_t counts[] = {0, 1, 7, 8, 127, 128, 129, COUNT};
  for (size_t c = 0; gradwire_codec_list(c) != NULL; ++c) {
    gradwire_codec* codec = make(gradwire_codec_list(c));
    for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); ++n) {
      for (int dtype = GRADWIRE_F32; dtype <= GRADWIRE_BF16; ++dtype) {
        check_round_trip(codec, counts[n], dtype);
        check_decode_add(codec, counts[n], dtype);
      }
    }
    gradwire_codec_destroy(codec);
  }
}

static void no_numbers_need_no_pointer(void) {
  size_t written = 0;
  gradwire_codec* codec = make("uniform");
  EXPECT_OK(
      gradwire_frame_encode(codec, NULL, 0, GRADWIRE_F32, &kKey, 0, frame, CAPACITY, &written));
  EXPECT_OK(gradwire_frame_decode(frame, written, NULL, 0, GRADWIRE_F32));
  gradwire_codec_destroy(codec);
}

static void slices_draw_what_the_whole_draws(void) {
  static float whole[COUNT], part[COUNT];
  size_t written = 0;
  gradwire_codec* codec = make("uniform:bits=2,bucket=128,rounding=stochastic");
  for (int i = 0; i < COUNT; ++i) source.f32[i] = 0.37F * (float)(i % 29);
  const size_t bytes = encode(codec, COUNT, GRADWIRE_F32, frame);
  EXPECT_OK(gradwire_frame_decode(frame, bytes, whole, COUNT, GRADWIRE_F32));
  EXPECT_OK(gradwire_frame_encode(codec, source.f32 + 256, COUNT - 256, GRADWIRE_F32, &kKey, 256,
                                  frame, CAPACITY, &written));
  EXPECT_OK(gradwire_frame_decode(frame, written, part, COUNT - 256, GRADWIRE_F32));
  EXPECT(memcmp(whole + 256, part, (COUNT - 256) * sizeof(float)) == 0);
  gradwire_codec_destroy(codec);
}

static void fitted_codecs_are_codecs(void) {
  gradwire_codec* codec = make("grid:step=0.5");
  gradwire_codec *fitted = NULL, *again = NULL;
  fill(&source, GRADWIRE_F32);
  EXPECT_OK(gradwire_codec_fit(codec, &source, COUNT, GRADWIRE_F32, &fitted));
  EXPECT_OK(gradwire_codec_create(gradwire_codec_spec(fitted), &again));
  EXPECT(strcmp(gradwire_codec_spec(fitted), gradwire_codec_spec(again)) == 0);
  const size_t bytes = encode(fitted, COUNT, GRADWIRE_F32, frame);
  EXPECT(encode(again, COUNT, GRADWIRE_F32, other_frame) == bytes);
  EXPECT(memcmp(frame, other_frame, bytes) == 0);
  EXPECT_FAILURE(gradwire_codec_fit(codec, &source, COUNT, 3, &fitted), GRADWIRE_INVALID_ARGUMENT,
                 "dtype");
  EXPECT_FAILURE(gradwire_codec_fit(codec, &source, COUNT, GRADWIRE_F32, NULL),
                 GRADWIRE_INVALID_ARGUMENT, "fitted is null");
  gradwire_codec_destroy(codec);
  gradwire_codec_destroy(fitted);
  gradwire_codec_destroy(again);
}

// -------------------------------------------------------------------------------------------------

static void wrong_encode_arguments_are_refused(void) {
  size_t written = 77;
  gradwire_codec* codec = make("none");
  const size_t enough = gradwire_codec_max_frame_bytes(codec, 10);
  EXPECT_FAILURE(
      gradwire_frame_encode(codec, NULL, 10, GRADWIRE_F32, &kKey, 0, frame, enough, &written),
      GRADWIRE_INVALID_ARGUMENT, "data is null");
  EXPECT_FAILURE(gradwire_frame_encode(codec, &source, 10, 3, &kKey, 0, frame, enough, &written),
                 GRADWIRE_INVALID_ARGUMENT, "GRADWIRE_BF16");
  EXPECT_FAILURE(gradwire_frame_encode(codec, &source, 10, -1, &kKey, 0, frame, enough, &written),
                 GRADWIRE_INVALID_ARGUMENT, "dtype");
  EXPECT_FAILURE(gradwire_frame_encode(codec, source.bytes + 1, 10, GRADWIRE_F16, &kKey, 0, frame,
                                       enough, &written),
                 GRADWIRE_INVALID_ARGUMENT, "aligned");
  EXPECT_FAILURE(gradwire_frame_encode(codec, &source, SIZE_MAX / 2, GRADWIRE_F32, &kKey, 0, frame,
                                       enough, &written),
                 GRADWIRE_INVALID_ARGUMENT, "count");
  EXPECT_FAILURE(
      gradwire_frame_encode(codec, &source, 10, GRADWIRE_F32, NULL, 0, frame, enough, &written),
      GRADWIRE_INVALID_ARGUMENT, "random is null");
  EXPECT_FAILURE(
      gradwire_frame_encode(codec, &source, 10, GRADWIRE_F32, &kKey, 64, frame, enough, &written),
      GRADWIRE_INVALID_ARGUMENT, "128");
  EXPECT_FAILURE(
      gradwire_frame_encode(codec, &source, 10, GRADWIRE_F32, &kKey, 0, NULL, enough, &written),
      GRADWIRE_INVALID_ARGUMENT, "frame is null");
  EXPECT_FAILURE(gradwire_frame_encode(codec, &source, 10, GRADWIRE_F32, &kKey, 0, frame,
                                       enough - 1, &written),
                 GRADWIRE_BUFFER_TOO_SMALL, "max_frame_bytes");
  EXPECT(written == 77);
  EXPECT_FAILURE(
      gradwire_frame_encode(codec, &source, 10, GRADWIRE_F32, &kKey, 0, frame, enough, NULL),
      GRADWIRE_INVALID_ARGUMENT, "written is null");
  gradwire_codec_destroy(codec);
}

static void wrong_decode_arguments_are_refused_and_touch_nothing(void) {
  gradwire_codec* codec = make("none");
  fill(&source, GRADWIRE_F32);
  const size_t bytes = encode(codec, 10, GRADWIRE_F32, frame);
  memset(&target, 0x55, sizeof(target));
  EXPECT_FAILURE(gradwire_frame_decode(NULL, bytes, &target, 10, GRADWIRE_F32),
                 GRADWIRE_INVALID_ARGUMENT, "frame is null");
  EXPECT_FAILURE(gradwire_frame_decode(frame, bytes, NULL, 10, GRADWIRE_F32),
                 GRADWIRE_INVALID_ARGUMENT, "data is null");
  EXPECT_FAILURE(gradwire_frame_decode(frame, bytes, &target, 10, 7), GRADWIRE_INVALID_ARGUMENT,
                 "dtype");
  EXPECT_FAILURE(gradwire_frame_decode(frame, bytes, target.bytes + 2, 10, GRADWIRE_F32),
                 GRADWIRE_INVALID_ARGUMENT, "aligned");
  EXPECT_FAILURE(gradwire_frame_decode(frame, bytes, &target, 9, GRADWIRE_F32),
                 GRADWIRE_COUNT_MISMATCH, "another number");
  EXPECT_FAILURE(gradwire_frame_decode_add(frame, bytes, &target, 11, GRADWIRE_F32),
                 GRADWIRE_COUNT_MISMATCH, "another number");
  EXPECT(is_filled_with(&target, 0x55));
  gradwire_codec_destroy(codec);
}

static void damaged_frames_are_reported_and_touch_nothing(void) {
  gradwire_codec* codec = make("uniform:bits=4,bucket=128");
  fill(&source, GRADWIRE_F32);
  const size_t bytes = encode(codec, 300, GRADWIRE_F32, frame);
  memset(&target, 0x55, sizeof(target));
  for (size_t length = 0; length < bytes; ++length) {
    EXPECT_FAILURE(gradwire_frame_decode(frame, length, &target, 300, GRADWIRE_F32),
                   GRADWIRE_TRUNCATED, "cut short");
  }
  for (size_t bit = 0; bit < 8 * bytes; ++bit) {
    frame[bit / 8] ^= (unsigned char)(1U << (bit % 8));
    EXPECT_FAILURE(gradwire_frame_decode_add(frame, bytes, &target, 300, GRADWIRE_F32),
                   GRADWIRE_CORRUPT, "not an intact");
    frame[bit / 8] ^= (unsigned char)(1U << (bit % 8));
  }
  EXPECT(is_filled_with(&target, 0x55));
  EXPECT_OK(gradwire_frame_decode(frame, bytes, &target, 300, GRADWIRE_F32));
  gradwire_codec_destroy(codec);
}

static void frames_need_no_alignment(void) {
  for (size_t c = 0; gradwire_codec_list(c) != NULL; ++c) {
    gradwire_codec* codec = make(gradwire_codec_list(c));
    size_t written = 0;
    fill(&source, GRADWIRE_F32);
    const size_t bytes = encode(codec, COUNT, GRADWIRE_F32, frame);
    EXPECT_OK(gradwire_frame_encode(codec, &source, COUNT, GRADWIRE_F32, &kKey, 0, other_frame + 1,
                                    CAPACITY - 1, &written));
    EXPECT(written == bytes && memcmp(frame, other_frame + 1, bytes) == 0);
    EXPECT_OK(gradwire_frame_decode(frame, bytes, &source, COUNT, GRADWIRE_F32));
    EXPECT_OK(gradwire_frame_decode(other_frame + 1, bytes, &target, COUNT, GRADWIRE_F32));
    EXPECT(memcmp(&source, &target, sizeof(source)) == 0);
    gradwire_codec_destroy(codec);
  }
}

// -------------------------------------------------------------------------------------------------

static void a_frame_holds_segments_of_several_kinds(void) {
  static float first[100], third[50];
  static uint16_t second[200];
  gradwire_codec *none = make("none"), *uniform = make("uniform:bits=8,bucket=64");
  size_t written = 0, segment_count = 0, frame_bytes = 0;
  gradwire_segment_info infos[3];
  buffer half;
  fill(&source, GRADWIRE_F32);
  fill(&half, GRADWIRE_BF16);
  const gradwire_segment segments[] = {
      {.codec = none, .data = source.f32, .count = 100, .dtype = GRADWIRE_F32, .random = kKey},
      {.codec = uniform, .data = half.half, .count = 200, .dtype = GRADWIRE_BF16, .random = kKey},
      {.codec = none, .data = source.f32, .count = 50, .dtype = GRADWIRE_F32, .random = kKey}};
  const gradwire_output outputs[] = {
      {first, 100, GRADWIRE_F32}, {second, 200, GRADWIRE_BF16}, {third, 50, GRADWIRE_F32}};

  const size_t enough = gradwire_segments_max_frame_bytes(segments, 3);
  EXPECT_OK(gradwire_segments_encode(segments, 3, frame, enough, &written));
  EXPECT(written <= enough);
  EXPECT_FAILURE(gradwire_segments_encode(segments, 3, frame, 100, &written),
                 GRADWIRE_BUFFER_TOO_SMALL, "max_frame_bytes");
  EXPECT_OK(gradwire_segments_encode(segments, 3, frame, enough, &written));

  EXPECT_OK(gradwire_frame_inspect(frame, enough, infos, 3, &segment_count, &frame_bytes));
  EXPECT(segment_count == 3 && frame_bytes == written);
  EXPECT(strcmp(infos[0].spec, "none") == 0 && infos[0].dtype == GRADWIRE_F32);
  EXPECT(strcmp(infos[1].spec, gradwire_codec_spec(uniform)) == 0);
  EXPECT(infos[1].dtype == GRADWIRE_BF16 && infos[1].count == 200);
  EXPECT(infos[2].count == 50 && infos[2].payload_bytes == 200);

  EXPECT_OK(gradwire_segments_decode(frame, written, outputs, 3));
  EXPECT(memcmp(first, source.f32, sizeof(first)) == 0);
  EXPECT_OK(gradwire_segments_decode_add(frame, written, outputs, 3));
  EXPECT(third[0] == 0.0F && third[1] == 2.0F && third[2] == -4.0F && third[3] == 1.0F);

  gradwire_codec_destroy(none);
  gradwire_codec_destroy(uniform);
}

static void wrong_segments_are_refused_and_touch_nothing(void) {
  gradwire_codec* codec = make("none");
  size_t written = 77, segment_count = 77;
  fill(&source, GRADWIRE_F32);
  gradwire_segment segments[] = {
      {.codec = codec, .data = &source, .count = 10, .dtype = GRADWIRE_F32, .random = kKey},
      {.codec = NULL, .data = &source, .count = 20, .dtype = GRADWIRE_F32, .random = kKey}};
  EXPECT_FAILURE(gradwire_segments_encode(segments, 2, frame, CAPACITY, &written),
                 GRADWIRE_INVALID_ARGUMENT, "codec is null");
  EXPECT_FAILURE(gradwire_segments_encode(NULL, 2, frame, CAPACITY, &written),
                 GRADWIRE_INVALID_ARGUMENT, "segments is null");
  segments[1].codec = codec;
  segments[1].dtype = 9;
  EXPECT_FAILURE(gradwire_segments_encode(segments, 2, frame, CAPACITY, &written),
                 GRADWIRE_INVALID_ARGUMENT, "dtype");
  EXPECT(written == 77);
  segments[1].dtype = GRADWIRE_F32;
  EXPECT_OK(gradwire_segments_encode(segments, 2, frame, CAPACITY, &written));

  memset(&target, 0x55, sizeof(target));
  gradwire_output outputs[] = {{target.f32, 10, GRADWIRE_F32}, {target.f32 + 10, 21, GRADWIRE_F32}};
  EXPECT_FAILURE(gradwire_segments_decode(frame, written, outputs, 2), GRADWIRE_COUNT_MISMATCH,
                 "another number");
  EXPECT_FAILURE(gradwire_segments_decode(frame, written, outputs, 1), GRADWIRE_COUNT_MISMATCH,
                 "another number");
  EXPECT_FAILURE(gradwire_segments_decode_add(frame, written, NULL, 2), GRADWIRE_INVALID_ARGUMENT,
                 "outputs is null");
  EXPECT_FAILURE(gradwire_frame_decode(frame, written, &target, 10, GRADWIRE_F32),
                 GRADWIRE_COUNT_MISMATCH, "another number");
  EXPECT(is_filled_with(&target, 0x55));

  EXPECT_FAILURE(gradwire_frame_inspect(NULL, 5, NULL, 0, &segment_count, NULL),
                 GRADWIRE_INVALID_ARGUMENT, "frame is null");
  EXPECT_FAILURE(gradwire_frame_inspect(frame, written, NULL, 1, &segment_count, NULL),
                 GRADWIRE_INVALID_ARGUMENT, "segments is null");
  EXPECT_FAILURE(gradwire_frame_inspect(frame, written, NULL, 0, NULL, NULL),
                 GRADWIRE_INVALID_ARGUMENT, "segment_count is null");
  EXPECT_FAILURE(gradwire_frame_inspect(frame, written - 1, NULL, 0, &segment_count, NULL),
                 GRADWIRE_TRUNCATED, "cut short");
  EXPECT(segment_count == 77);
  EXPECT_OK(gradwire_frame_inspect(frame, written, NULL, 0, &segment_count, NULL));
  EXPECT(segment_count == 2);
  gradwire_codec_destroy(codec);
}

static void frames_of_no_and_of_many_segments(void) {
  enum { MANY = 200 };
  static gradwire_segment segments[MANY];
  static gradwire_output outputs[MANY];
  gradwire_codec* codec = make("none");
  size_t written = 0, segment_count = 77;
  EXPECT_OK(gradwire_segments_encode(NULL, 0, frame, CAPACITY, &written));
  EXPECT_OK(gradwire_segments_decode(frame, written, NULL, 0));
  EXPECT_OK(gradwire_frame_inspect(frame, written, NULL, 0, &segment_count, NULL));
  EXPECT(segment_count == 0);

  fill(&source, GRADWIRE_F32);
  memset(&target, 0, sizeof(target));
  for (size_t i = 0; i < MANY; ++i) {
    segments[i].codec = codec;
    segments[i].data = source.f32 + 5 * i;
    segments[i].count = 5;
    outputs[i].data = target.f32 + 5 * i;
    outputs[i].count = 5;
  }
  EXPECT_OK(gradwire_segments_encode(segments, MANY, frame, CAPACITY, &written));
  EXPECT_OK(gradwire_segments_decode(frame, written, outputs, MANY));
  EXPECT(memcmp(&source, &target, sizeof(source.f32)) == 0);
  gradwire_codec_destroy(codec);
}

// -------------------------------------------------------------------------------------------------

static void every_isa_gives_the_same_bytes(void) {
  gradwire_codec* codec = make("uniform:bits=4,bucket=128,rounding=stochastic");
  fill(&source, GRADWIRE_F32);
  EXPECT(strcmp(gradwire_isa_list(0), "scalar") == 0);
  EXPECT_OK(gradwire_isa_use("scalar"));
  const size_t bytes = encode(codec, COUNT, GRADWIRE_F32, frame);
  for (size_t i = 0; gradwire_isa_list(i) != NULL; ++i) {
    EXPECT_OK(gradwire_isa_use(gradwire_isa_list(i)));
    EXPECT(strcmp(gradwire_isa_current(), gradwire_isa_list(i)) == 0);
    EXPECT(encode(codec, COUNT, GRADWIRE_F32, other_frame) == bytes);
    EXPECT(memcmp(frame, other_frame, bytes) == 0);
  }
  EXPECT_OK(gradwire_isa_use("auto"));
  EXPECT_FAILURE(gradwire_isa_use("mmx"), GRADWIRE_UNAVAILABLE, "scalar");
  EXPECT_FAILURE(gradwire_isa_use(NULL), GRADWIRE_INVALID_ARGUMENT, "name is null");
  gradwire_codec_destroy(codec);
}

static void environment_is_read_when_asked(void) {
  EXPECT_OK(gradwire_configure_from_environment());
  setenv("GRADWIRE_ISA", "scalar", 1);
  EXPECT_OK(gradwire_configure_from_environment());
  EXPECT(strcmp(gradwire_isa_current(), "scalar") == 0);
  setenv("GRADWIRE_ISA", "mmx", 1);
  EXPECT_FAILURE(gradwire_configure_from_environment(), GRADWIRE_UNAVAILABLE, "GRADWIRE_ISA");
  setenv("GRADWIRE_ISA", "auto", 1);
  setenv("GRADWIRE_ISO", "1", 1);
  EXPECT_FAILURE(gradwire_configure_from_environment(), GRADWIRE_INVALID_SETTING, "GRADWIRE_ISO");
  unsetenv("GRADWIRE_ISO");
  EXPECT_OK(gradwire_configure_from_environment());
  unsetenv("GRADWIRE_ISA");
}

static void* fail_on_another_thread(void* unused) {
  (void)unused;
  gradwire_codec* codec = NULL;
  EXPECT(strcmp(gradwire_last_error(), "") == 0);
  EXPECT_FAILURE(gradwire_codec_create("other", &codec), GRADWIRE_INVALID_SPEC, "'other'");
  return NULL;
}

static void each_thread_has_its_message(void) {
  pthread_t thread;
  gradwire_codec* codec = NULL;
  EXPECT_FAILURE(gradwire_codec_create("mine", &codec), GRADWIRE_INVALID_SPEC, "'mine'");
  EXPECT(pthread_create(&thread, NULL, fail_on_another_thread, NULL) == 0);
  EXPECT(pthread_join(thread, NULL) == 0);
  EXPECT(strstr(gradwire_last_error(), "'mine'") != NULL);
  gradwire_codec_destroy(make("none"));
  EXPECT(strstr(gradwire_last_error(), "'mine'") != NULL);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they need address space */

static rlim_t address_space_in_use(void) {
  long pages = 0;
  FILE* statm = fopen("/proc/self/statm", "r");
  EXPECT(statm != NULL && fscanf(statm, "%ld", &pages) == 1);
  if (statm != NULL) fclose(statm);
  return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* A spec so long that the message about it finds no memory. */
static void want_of_memory_is_a_code(void) {
  enum { LONG = 256 << 20 };
  struct rlimit before, tight;
  gradwire_codec* codec = NULL;
  char* spec = malloc(LONG);
  EXPECT(spec != NULL);
  if (spec == NULL) return;
  memset(spec, 'x', LONG - 1);
  spec[LONG - 1] = '\0';
  EXPECT(getrlimit(RLIMIT_AS, &before) == 0);
  tight = before;
  tight.rlim_cur = address_space_in_use() + LONG / 2;
  EXPECT(setrlimit(RLIMIT_AS, &tight) == 0);
  EXPECT_FAILURE(gradwire_codec_create(spec, &codec), GRADWIRE_OUT_OF_MEMORY, "memory");
  EXPECT(setrlimit(RLIMIT_AS, &before) == 0);
  free(spec);
}

#else

static void want_of_memory_is_a_code(void) {}

#endif

int main(void) {
  before_the_first_failure_the_message_is_empty();
  version_is_a_version();
  codecs_are_listed_and_their_texts_round_trip();
  codecs_have_traits();
  wrong_specs_are_refused_with_what_exists();
  a_long_message_is_cut();
  null_codecs_are_harmless();
  size_bounds_do_not_overflow();
  every_codec_dtype_and_count_round_trips();
  no_numbers_need_no_pointer();
  slices_draw_what_the_whole_draws();
  fitted_codecs_are_codecs();
  wrong_encode_arguments_are_refused();
  wrong_decode_arguments_are_refused_and_touch_nothing();
  damaged_frames_are_reported_and_touch_nothing();
  frames_need_no_alignment();
  a_frame_holds_segments_of_several_kinds();
  wrong_segments_are_refused_and_touch_nothing();
  frames_of_no_and_of_many_segments();
  every_isa_gives_the_same_bytes();
  environment_is_read_when_asked();
  each_thread_has_its_message();
  want_of_memory_is_a_code();
  return summary();
}
