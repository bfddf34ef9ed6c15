// gradwire.h: gradients to few bytes and back, for C and for every language that can call C.
//
// In short
//
//   A *codec* says how numbers become bytes. It is made from a text such as "grid:step=0.5" and
//   never changes. A *frame* is what travels: the encoded numbers with their codec, dtype, count
//   and a checksum, so a receiver needs nothing but the bytes. A frame holds one *segment* per
//   tensor; `gradwire_frame_*` handle frames of one tensor, `gradwire_segments_*` frames of
//   several.
//
// A complete program
//
//   #include <gradwire/gradwire.h>
//   #include <stdio.h>
//   #include <stdlib.h>
//
//   enum { COUNT = 1000 };
//
//   int main(void) {
//     static float gradient[COUNT], sum[COUNT];
//     for (int i = 0; i < COUNT; ++i) gradient[i] = 0.001f * (float)i;
//
//     gradwire_codec* codec = NULL;
//     if (gradwire_codec_create("uniform:bits=4,bucket=128", &codec) != GRADWIRE_OK) {
//       fprintf(stderr, "%s\n", gradwire_last_error());
//       return 1;
//     }
//
//     size_t bytes = 0, capacity = gradwire_codec_max_frame_bytes(codec, COUNT);
//     void* frame = malloc(capacity);
//     gradwire_random_key key = {.seed = 7, .step = 0, .tensor = 0, .rank = 0};
//     int code = gradwire_frame_encode(codec, gradient, COUNT, GRADWIRE_F32, &key, 0,
//                                      frame, capacity, &bytes);
//
//     // Send `bytes` bytes of `frame`. The receiver adds them to its sum:
//     if (code == GRADWIRE_OK) {
//       code = gradwire_frame_decode_add(frame, bytes, sum, COUNT, GRADWIRE_F32);
//     }
//
//     if (code == GRADWIRE_OK) {
//       printf("%d numbers in %d bytes; the last: %g\n", COUNT, (int)bytes, sum[COUNT - 1]);
//     } else {
//       fprintf(stderr, "%s\n", gradwire_last_error());
//     }
//     free(frame);
//     gradwire_codec_destroy(codec);
//     return code;
//   }
//
//   cc example.c $(pkg-config --cflags --libs gradwire)
//
// What holds everywhere
//
//   Failure   Functions that can fail return 0 (GRADWIRE_OK) or another `GRADWIRE_*` code, and
//             leave a sentence in `gradwire_last_error`. Outputs are set only on success, unless
//             stated.
//   Memory    The caller owns every buffer and may free it when the call returns. gradwire keeps no
//             pointers, and allocates only in functions whose comment says so.
//   Numbers   `data` points to `count` contiguous numbers, aligned to their size; it may be null
//             only when `count` is 0. Buffers of one call must not overlap.
//   Threads   Any function may be called from any number of threads at once, also with the same
//             codec. The exceptions are `gradwire_isa_use` and
//             `gradwire_configure_from_environment`.
//   Silence   The library never prints, aborts, exits or, unless asked, reads the environment.
//   Version   Before 1.0 a minor version may break; the name of the shared library changes with it.
#ifndef GRADWIRE_GRADWIRE_H_
#define GRADWIRE_GRADWIRE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define GRADWIRE_API __attribute__((visibility("default")))
#else
#define GRADWIRE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// -------------------------------------------------------------------------------------------------
// Codes and messages

// Numbers never change meaning; new ones may come.
enum gradwire_code {
  GRADWIRE_OK = 0,
  GRADWIRE_BUFFER_TOO_SMALL = 1,  // the output has fewer bytes than `..._max_..._bytes` says
  GRADWIRE_INVALID_ARGUMENT = 2,  // null, misaligned, an unknown dtype, a misplaced `first_element`
  GRADWIRE_TRUNCATED = 3,         // the bytes end before the frame does
  GRADWIRE_CORRUPT = 4,           // these bytes are not what was sent: magic, checksum or structure
  GRADWIRE_UNSUPPORTED_VERSION = 5,  // a frame of a newer gradwire
  GRADWIRE_UNKNOWN_CODEC = 6,        // a frame with a codec or dtype that this build does not know
  GRADWIRE_COUNT_MISMATCH = 7,       // the frame holds another number of segments or elements
  GRADWIRE_INVALID_SPEC = 32,     // an unknown codec, key or value; the message lists what exists
  GRADWIRE_INVALID_SETTING = 33,  // an environment variable that gradwire does not know
  GRADWIRE_UNAVAILABLE = 35,      // this CPU or build does not have what was asked for
  GRADWIRE_OUT_OF_MEMORY = 64,
  GRADWIRE_INTERNAL = 65  // a fault of gradwire itself; please report it with the message
};

// What the last failure on this thread was and what to do about it, in one sentence. Never null,
// empty before the first failure, unchanged by success. Valid until the next failure on this
// thread.
GRADWIRE_API const char* gradwire_last_error(void);

// The library's version, such as "0.1.0". Static storage.
GRADWIRE_API const char* gradwire_version(void);

// -------------------------------------------------------------------------------------------------
// Codecs

// Types of numbers, for every parameter called `dtype`.
enum gradwire_dtype { GRADWIRE_F32 = 0, GRADWIRE_F16 = 1, GRADWIRE_BF16 = 2 };

// Immutable; made by `gradwire_codec_create` or `_fit`, ended by `gradwire_codec_destroy`.
typedef struct gradwire_codec gradwire_codec;

// Makes a codec from `name` or `name:key=value,key=value`; keys left out take their defaults.
// Allocates; the caller destroys `*codec`. Fails with INVALID_SPEC or OUT_OF_MEMORY.
GRADWIRE_API int gradwire_codec_create(const char* spec, gradwire_codec** codec);

// Makes a codec for slices of one layer. Statistics that must be taken over a whole layer (of the
// `grid` codec) are taken here, once; other codecs are copied. Allocates; the caller destroys
// `*fitted`. `codec` stays as it is.
GRADWIRE_API int gradwire_codec_fit(const gradwire_codec* codec, const void* data, size_t count,
                                    int dtype, gradwire_codec** fitted);

// Null is allowed. No other thread may be using the codec.
GRADWIRE_API void gradwire_codec_destroy(gradwire_codec* codec);

// The codec's text with every key written out; creating a codec from it gives an equal one. Lives
// as long as the codec.
GRADWIRE_API const char* gradwire_codec_spec(const gradwire_codec* codec);

// The spec of one codec with all keys at their defaults: index 0, 1, … until null. Static storage,
// allocated by the first call.
GRADWIRE_API const char* gradwire_codec_list(size_t index);

// What may be relied upon, whatever the numbers.
enum gradwire_trait {
  GRADWIRE_LOSSLESS = 1,    // decodes to the very bits that were encoded (same dtype)
  GRADWIRE_UNBIASED = 2,    // the mean of the decoded value over seeds is the encoded value
  GRADWIRE_FIXED_SIZE = 4,  // the encoded size depends on the count alone
  GRADWIRE_KEEPS_ZEROS = 8  // an exact zero decodes to an exact zero
};

// The sum of the codec's `GRADWIRE_*` traits.
GRADWIRE_API uint32_t gradwire_codec_traits(const gradwire_codec* codec);

// No frame of one tensor of `count` numbers is larger, whatever the numbers and their dtype.
// SIZE_MAX when no memory could hold it.
GRADWIRE_API size_t gradwire_codec_max_frame_bytes(const gradwire_codec* codec, size_t count);

// -------------------------------------------------------------------------------------------------
// Frames of one tensor

// Randomness is an argument: the same key gives the same bytes, whatever the thread count and CPU.
// Different keys give independent random numbers, so pass each step's and each rank's own.
typedef struct gradwire_random_key {
  uint64_t seed;    // the job's
  uint64_t step;    // of training
  uint64_t tensor;  // which tensor, such as its index or a hash of its name
  uint64_t rank;    // whose gradient
} gradwire_random_key;

// Encodes `count` numbers into a frame at the front of `frame`. `capacity` is at least
// `gradwire_codec_max_frame_bytes(codec, count)`; `*written` becomes the frame's length. What lies
// behind it may be overwritten, also on failure. `first_element` is 0, or where these numbers stand
// in their tensor (a multiple of 128), so that slices draw the random numbers that the whole would
// draw. Does not allocate. Uses up to 160 KiB of stack.
GRADWIRE_API int gradwire_frame_encode(const gradwire_codec* codec, const void* data, size_t count,
                                       int dtype, const gradwire_random_key* random,
                                       uint64_t first_element, void* frame, size_t capacity,
                                       size_t* written);

// Decodes a frame of one tensor into `count` numbers of `dtype`, which need not be the dtype that
// was encoded. The bytes may come from anywhere: nothing is read beyond `bytes`, nothing written
// beyond `out`, and a damaged frame is reported before `out` is touched. `bytes` may exceed the
// frame. When a frame with a good checksum turns out not to decode, `out` holds unspecified
// numbers. Does not allocate. Uses up to 160 KiB of stack.
GRADWIRE_API int gradwire_frame_decode(const void* frame, size_t bytes, void* out, size_t count,
                                       int dtype);

// The same, but adds to `out`: the reduction step. Sums are formed in fp32 and rounded once.
GRADWIRE_API int gradwire_frame_decode_add(const void* frame, size_t bytes, void* out, size_t count,
                                           int dtype);

// -------------------------------------------------------------------------------------------------
// Frames of any number of tensors

// One tensor to encode; fields mean what they mean to `gradwire_frame_encode`.
typedef struct gradwire_segment {
  const gradwire_codec* codec;
  const void* data;
  size_t count;
  int dtype;
  gradwire_random_key random;
  uint64_t first_element;
} gradwire_segment;

// One tensor to decode into.
typedef struct gradwire_output {
  void* data;
  size_t count;
  int dtype;
} gradwire_output;

// No frame of these segments is larger; of a segment, the codec and the count matter. SIZE_MAX when
// no memory could hold it.
GRADWIRE_API size_t gradwire_segments_max_frame_bytes(const gradwire_segment* segments,
                                                      size_t segment_count);

// Encodes the segments, in order, into one frame; otherwise like `gradwire_frame_encode`.
// `capacity` is at least `gradwire_segments_max_frame_bytes`. Allocates only when there are more
// than 64 segments.
GRADWIRE_API int gradwire_segments_encode(const gradwire_segment* segments, size_t segment_count,
                                          void* frame, size_t capacity, size_t* written);

// Decodes every segment of a frame, the first into `outputs[0]` and so on; otherwise like
// `gradwire_frame_decode`. The number of segments and all counts are compared before any output is
// touched.
GRADWIRE_API int gradwire_segments_decode(const void* frame, size_t bytes,
                                          const gradwire_output* outputs, size_t output_count);

// The same, but adds to the outputs.
GRADWIRE_API int gradwire_segments_decode_add(const void* frame, size_t bytes,
                                              const gradwire_output* outputs, size_t output_count);

// -------------------------------------------------------------------------------------------------
// What a frame holds

#define GRADWIRE_SPEC_BYTES 256

typedef struct gradwire_segment_info {
  char spec[GRADWIRE_SPEC_BYTES];  // the codec's text, ended by a zero
  int dtype;                       // of the numbers that were encoded
  uint64_t count;
  uint64_t payload_bytes;  // without the segment's header
} gradwire_segment_info;

// Checks a frame like decoding does, and describes its first `capacity` segments in `segments`,
// which may be null when `capacity` is 0. `*segment_count` becomes the number of all its segments
// and, unless null, `*frame_bytes` its own length, which `bytes` may exceed. A count is the
// sender's claim: bound it before you allocate an output of that size. Allocates a little for the
// texts.
GRADWIRE_API int gradwire_frame_inspect(const void* frame, size_t bytes,
                                        gradwire_segment_info* segments, size_t capacity,
                                        size_t* segment_count, size_t* frame_bytes);

// -------------------------------------------------------------------------------------------------
// The CPU and the environment

// Every instruction set gives the same bytes and the same numbers; they differ in speed alone. The
// widest that the CPU has is the default.

// What this CPU and build offer, slowest first: index 0 ("scalar"), 1, … until null. Static
// storage, allocated by the first call.
GRADWIRE_API const char* gradwire_isa_list(size_t index);

// The one in use, such as "avx2". Static storage; null when out of memory.
GRADWIRE_API const char* gradwire_isa_current(void);

// Uses `name` from now on, in the whole process; "auto" picks the best. Not while another thread
// encodes or decodes. Fails with UNAVAILABLE.
GRADWIRE_API int gradwire_isa_use(const char* name);

// Applies the environment variables `GRADWIRE_*`; today there is GRADWIRE_ISA. Nothing else in the
// library reads them. Same rule for threads as above. Fails with INVALID_SETTING when a variable is
// unknown and with UNAVAILABLE when the CPU lacks the instruction set.
GRADWIRE_API int gradwire_configure_from_environment(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // GRADWIRE_GRADWIRE_H_
