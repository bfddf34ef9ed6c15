// gradwire.h: gradients to few bytes and back, and their sum over all ranks of a job, for C and for
// every language that can call C.
//
// In short
//
//   A *codec* says how numbers become bytes. It is made from a text such as "grid:step=0.5" and
//   never changes. A *frame* is what travels: the encoded numbers with their codec, dtype, count
//   and a checksum, so a receiver needs nothing but the bytes. A frame holds one *segment* per
//   tensor; `gradwire_frame_*` handle frames of one tensor, `gradwire_segments_*` frames of
//   several. A *communicator* joins the ranks of a job: it sums tensors over all of them, and
//   makes, sends and decodes the frames by itself.
//
// A program that encodes
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
// A program that sums over ranks
//
//   #include <gradwire/gradwire.h>
//   #include <stdio.h>
//   #include <stdlib.h>
//
//   enum { COUNT = 1000 };
//
//   int main(int argc, char** argv) {  // started once per rank: example RANK SIZE STORE
//     if (argc != 4) return 1;
//     gradwire_connect_options options = {.struct_bytes = sizeof options,
//                                         .rank = (uint32_t)atoi(argv[1]),
//                                         .size = (uint32_t)atoi(argv[2]),
//                                         .store = argv[3]};  // such as "file:/shared/job42"
//     gradwire_communicator* ranks = NULL;
//     gradwire_work* work = NULL;
//     static float gradient[COUNT];
//     for (int i = 0; i < COUNT; ++i) gradient[i] = 0.001f * (float)i;
//
//     int code = gradwire_communicator_connect(&options, &ranks);
//     if (code == GRADWIRE_OK) {
//       gradwire_tensor tensor = {
//           .name = "layer1", .data = gradient, .count = COUNT, .way = "grid:step=0.5"};
//       code = gradwire_communicator_all_reduce(ranks, &tensor, 1, NULL, &work);
//     }
//     if (code == GRADWIRE_OK) code = gradwire_work_wait(work);  // or compute something else first
//
//     if (code == GRADWIRE_OK) {
//       printf("the last sum: %g\n", gradient[COUNT - 1]);
//     } else {
//       fprintf(stderr, "%s\n", gradwire_last_error());  // names the rank that failed
//     }
//     gradwire_work_destroy(work);
//     gradwire_communicator_destroy(ranks);
//     return code;
//   }
//
// Build either with `cc example.c $(pkg-config --cflags --libs gradwire)`, or with CMake's
// `find_package(gradwire)` and the target `gradwire::c`. The folder examples/ has a longer one.
//
// What holds everywhere
//
//   Failure   Functions that can fail return 0 (GRADWIRE_OK) or another `GRADWIRE_*` code, and
//             leave a sentence in `gradwire_last_error`. Outputs are set only on success, unless
//             stated.
//   Memory    The caller owns every buffer and may free it when the call returns. gradwire keeps no
//             pointers but those to the numbers of an operation under way, and allocates only in
//             functions whose comment says so.
//   Numbers   `data` points to `count` contiguous numbers, aligned to their size; it may be null
//             only when `count` is 0. Buffers of one call must not overlap.
//   Threads   Any function may be called from any number of threads at once, also with the same
//             codec, communicator or work. The exceptions are `gradwire_isa_use`,
//             `gradwire_configure_from_environment`, and destroying what others are using.
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
  GRADWIRE_INVALID_SETTING = 33,  // a rank, store, algorithm, … or variable that cannot be
  GRADWIRE_BAD_FRAME = 34,        // these bytes are not what was saved
  GRADWIRE_UNAVAILABLE = 35,      // this CPU or build does not have what was asked for
  GRADWIRE_IO = 36,               // a file or a socket cannot be read or written
  GRADWIRE_TIMEOUT = 37,          // a deadline passed; the message names who was waited for
  GRADWIRE_PEER_FAILED = 38,      // another rank died, left or sent garbage; the message names it
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
  GRADWIRE_LOSSLESS = 1,     // decodes to the very bits that were encoded (same dtype)
  GRADWIRE_UNBIASED = 2,     // the mean of the decoded value over seeds is the encoded value
  GRADWIRE_FIXED_SIZE = 4,   // the encoded size depends on the count alone
  GRADWIRE_KEEPS_ZEROS = 8,  // an exact zero decodes to an exact zero
  GRADWIRE_SPARSE = 16       // few numbers are sent, and all others decode to zero
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
  uint64_t step;    // of training; a codec that sends one side at a time takes turns by it
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
// Communicators

// Ranks that compute together. Every rank makes the same calls in the same order, with tensors of
// the same sizes and dtypes; threads may share a communicator as long as that holds. Results are
// equal on all ranks to the bit, whatever the codec, and do not depend on timing.
//
// Every operation ends within its timeout. A rank that died, left, stopped or sent garbage is named
// on every other rank. After that the communicator takes only destruction, every operation on it
// fails alike, and a new one may be made in the same process.
//
// In a child of a fork it can be destroyed, which nobody notices; operations fail there with
// INVALID_SETTING.

// How to connect. `struct_bytes`, `rank` and `size` are always set, and `store` unless `size` is 1;
// a field that is zero or null takes the default in brackets, so begin with `= {.struct_bytes =
// sizeof options, …}`. Later versions append fields; `struct_bytes` tells which ones a program
// knew when it was compiled.
typedef struct gradwire_connect_options {
  size_t struct_bytes;  // sizeof(gradwire_connect_options)
  uint32_t rank;        // of this process, from 0
  uint32_t size;        // how many ranks there are
  // Where ranks find one another: "file:DIRECTORY" (seen by all, of this user), "tcp:HOST:PORT"
  // (rank 0 listens there), or "mpi" in a job of mpirun (rank 0 of 1 stands for MPI's numbers).
  const char* store;
  // A text that the ranks of the job know and nobody else. Without it the job's key is in the
  // store, and whoever can read that can join [none].
  const char* secret;
  // Of what goes over tcp, by TLS 1.3: "auto" (when there is a secret or a certificate), "tls" or
  // "none"; the same on all ranks ["auto"].
  const char* encryption;
  // For TLS by certificates rather than by the secret, PEM files: this rank's, its private key
  // without a password, and the authority that signed all ranks' [none].
  const char* certificate;
  const char* private_key;
  const char* authority;
  // "auto" (shared memory inside a host; between hosts tcp, or mpi if that is the store), "shm",
  // "tcp" or "mpi" ["auto"].
  const char* transport;
  // "auto", "sra", "ring", "tree", "allgather", "hierarchical", "hierarchical-exact", or an option
  // written out (`gradwire schedule --list`), for all_reduce ["auto"].
  const char* algorithm;
  const char* interface;  // for tcp, a network interface by name or address [all that are up]
  uint64_t timeout_ms;    // for connecting and for each operation, at most a year [60000]
  size_t piece_elements;  // numbers per piece [chosen by transport and ranks]
  size_t threads;         // that encode and decode, up to 64 [chosen by the host's cores]
  uint32_t lanes;         // pieces of a tensor that are under way at once, up to 64 [8]
  uint32_t port;          // to listen on for tcp [any free one]
  // A folder in which each rank leaves a trace when the communicator ends or fails; `gradwire
  // trace` joins them (docs/trace.md). It is made if it is missing. All ranks have one, or none has
  // [none].
  const char* trace;
} gradwire_connect_options;

// One rank of a job.
typedef struct gradwire_communicator gradwire_communicator;

// An operation under way, or done.
typedef struct gradwire_work gradwire_work;

// Waits for all ranks. Keeps no pointer of `options`. Allocates, and starts the threads that do the
// work; the caller destroys `*communicator`. Fails with INVALID_SETTING, with IO, or with
// TIMEOUT when somebody does not come.
GRADWIRE_API int gradwire_communicator_connect(const gradwire_connect_options* options,
                                               gradwire_communicator** communicator);

// Null is allowed. Operations that are not done fail, here and on the other ranks. Waits up to 5 s
// for messages that others still need.
GRADWIRE_API void gradwire_communicator_destroy(gradwire_communicator* communicator);

// As given to `gradwire_communicator_connect`; 0 when `communicator` is null.
GRADWIRE_API uint32_t gradwire_communicator_rank(const gradwire_communicator* communicator);
GRADWIRE_API uint32_t gradwire_communicator_size(const gradwire_communicator* communicator);
// 0 also when hosts have different numbers of ranks.
GRADWIRE_API uint32_t
gradwire_communicator_ranks_per_host(const gradwire_communicator* communicator);

// One tensor of an operation. `data` is read and written until the operation is done; everything
// else may go when the call returns.
typedef struct gradwire_tensor {
  // Tells random numbers and residuals apart; the same on all ranks [none: the place in the call].
  const char* name;
  void* data;
  size_t count;
  int dtype;
  // How it travels, the same on all ranks [the plan's way of the layer of this name, or without a
  // plan exactly]: a codec, such as "grid:step=0.5", and behind it, if wanted:
  //   +feedback      What the codec held back is added in the next all_reduce or reduce_scatter of
  //                  this name. Keys, as in "+feedback:momentum=0.9,reuse=5": `momentum` of SGD,
  //                  which what is held back gains as if it had been sent, so that the optimizer
  //                  must add none; `nesterov=1`, Nesterov's; `masking=1`, momentum ends where a
  //                  sparse codec sent something; `reuse`, operations for which a sparse codec is
  //                  fitted to the numbers.
  //   +route:sra     The algorithm; of all calls but all_reduce the same for all tensors [the
  //                  communicator's].
  const char* way;
} gradwire_tensor;

// How to do one operation; null stands for all defaults. Grows like `gradwire_connect_options`.
// Without a step, which is to say 0, the communicator counts its operations, so that those that
// repeat draw new random numbers. The count is saved with residuals. Where a tensor takes the
// plan's way, 0 is the first step.
typedef struct gradwire_operation_options {
  size_t struct_bytes;  // sizeof(gradwire_operation_options)
  uint64_t seed;        // the job's, for stochastic rounding
  uint64_t step;        // of training: others draw other random numbers [a count of operations]
  uint64_t timeout_ms;  // [the communicator's]
  uint64_t average;     // of all_reduce and reduce_scatter: 1 divides sums by the ranks [0]
  // 1 finds out what codecs lose of all of this rank's numbers, and not of a sample of them, for
  // `gradwire_work_tensor_statistics`. It costs a decoding [0].
  uint64_t measure_error;
  // 1 finds out the energies also of tensors that travel exactly. It costs reading them once more
  // [0].
  uint64_t exact_energies;
} gradwire_operation_options;

// Names a tensor for plans: `count` elements, of reduce_scatter and all_gather those of all parts.
// Fails with INVALID_SETTING for a name that is known with another count or dtype.
GRADWIRE_API int gradwire_communicator_register_layer(gradwire_communicator* communicator,
                                                      const char* name, size_t count, int dtype);

// From a step on, tensors without a way of their own take that of `plan`, the text of a plan
// (docs/plan.md), by their names. A later plan takes the place of an earlier one from its step on.
// All ranks call it together, and it waits for them: ranks that differ in plan, step or layers are
// named on all ranks, with INVALID_SETTING, and nothing changes. Fails with INVALID_SPEC for a text
// that is no plan; the other ranks then wait for this one.
GRADWIRE_API int gradwire_communicator_set_plan(gradwire_communicator* communicator,
                                                const char* plan, uint64_t from_step);

// The operations. Each starts one, allocates, and returns at once with `*work`, which the caller
// destroys; when `work` is null it returns when the operation is done. Wrong arguments fail at
// once, and then nothing was started: the other ranks wait for this one. What fails later fails in
// `gradwire_work_wait`.

// The sum of every tensor over all ranks, in place. Tensors travel together, and each has the bits
// that it would have alone; those that overlap fail with INVALID_SETTING.
GRADWIRE_API int gradwire_communicator_all_reduce(gradwire_communicator* communicator,
                                                  const gradwire_tensor* tensors,
                                                  size_t tensor_count,
                                                  const gradwire_operation_options* options,
                                                  gradwire_work** work);

// `tensor` has as many equal parts as there are ranks. This rank's becomes their sum; the others
// are left unspecified.
GRADWIRE_API int gradwire_communicator_reduce_scatter(gradwire_communicator* communicator,
                                                      const gradwire_tensor* tensor,
                                                      const gradwire_operation_options* options,
                                                      gradwire_work** work);

// `tensor` has as many equal parts as there are ranks. This rank's is sent to all.
GRADWIRE_API int gradwire_communicator_all_gather(gradwire_communicator* communicator,
                                                  const gradwire_tensor* tensor,
                                                  const gradwire_operation_options* options,
                                                  gradwire_work** work);

// The same for the parts of several tensors, which travel together: those of rank 0, then those of
// rank 1, and so on, equally many for each. The i-th of every rank are the parts of one tensor: of
// the same count, dtype, way and name.
GRADWIRE_API int gradwire_communicator_reduce_scatter_parts(
    gradwire_communicator* communicator, const gradwire_tensor* parts, size_t part_count,
    const gradwire_operation_options* options, gradwire_work** work);
GRADWIRE_API int gradwire_communicator_all_gather_parts(gradwire_communicator* communicator,
                                                        const gradwire_tensor* parts,
                                                        size_t part_count,
                                                        const gradwire_operation_options* options,
                                                        gradwire_work** work);

// Every tensor becomes what the root's decodes to, on the root too.
GRADWIRE_API int gradwire_communicator_broadcast(gradwire_communicator* communicator,
                                                 const gradwire_tensor* tensors,
                                                 size_t tensor_count, uint32_t root,
                                                 const gradwire_operation_options* options,
                                                 gradwire_work** work);

// Done when every rank has called it.
GRADWIRE_API int gradwire_communicator_barrier(gradwire_communicator* communicator,
                                               const gradwire_operation_options* options,
                                               gradwire_work** work);

// Returns when the operation is done: its result, the same for everyone who asks. Fails with
// PEER_FAILED or TIMEOUT; tensors then hold unspecified numbers.
GRADWIRE_API int gradwire_work_wait(gradwire_work* work);

// 1 when `gradwire_work_wait` would return at once, else 0.
GRADWIRE_API int gradwire_work_done(const gradwire_work* work);

// What an operation cost this rank.
typedef struct gradwire_statistics {
  uint64_t sent_bytes;  // on the wire or in shared memory, headers included
  uint64_t sent_messages;
  double seconds;  // from the call to the end
} gradwire_statistics;

// Of an operation that is done; INVALID_ARGUMENT before.
GRADWIRE_API int gradwire_work_statistics(const gradwire_work* work,
                                          gradwire_statistics* statistics);

// What one tensor of an operation cost this rank, and what became of its numbers there. An energy
// is a sum of squares, within a millionth of it, and not finite where a number is not. Added up
// over all ranks, energies tell how far the ranks agree: with `average`, ranks * sum_energy /
// energy, and without, sum_energy / (ranks * energy), is 1 where all have the same numbers and
// about 1 / ranks where they have nothing in common.
typedef struct gradwire_tensor_statistics {
  uint64_t sent_bytes;  // of all messages, those of its segments
  // Of this rank's numbers, as it contributed them: with feedback, with what was kept of them
  // before. 0 where nothing travels, and without `exact_energies` where numbers travel exactly.
  double energy;
  // Of the sums that this rank finished, divided if they are, before a codec encodes them; of a sum
  // that several ranks finish, one has it. 0 as above, and where nothing is added.
  double sum_energy;
  // Of what feedback keeps of the tensor on this rank after the operation. 0 without feedback.
  double residual_energy;
  // Of a sample of this rank's numbers, or with `measure_error` of all, as far as it encoded them,
  // and of what the codec lost of them; their NMSE is squared_error / measured_energy. A message is
  // in the sample in one of 31 steps. Both are 0 where nothing was.
  double measured_energy;
  double squared_error;
  // Of the numbers that were measured: finite ones that decode to what is not finite.
  uint64_t saturated;
} gradwire_tensor_statistics;

// Describes the first `capacity` tensors of an operation that is done, in the order of the call,
// the parts of a tensor as one. `tensors` may be null when `capacity` is 0; `*tensor_count` becomes
// the number of all. INVALID_ARGUMENT while the operation is under way.
GRADWIRE_API int gradwire_work_tensor_statistics(const gradwire_work* work,
                                                 gradwire_tensor_statistics* tensors,
                                                 size_t capacity, size_t* tensor_count);

// Waits first, so that the tensors are the caller's again. Null is allowed. Works may outlive their
// communicator.
GRADWIRE_API void gradwire_work_destroy(gradwire_work* work);

// What feedback keeps on this rank, for a checkpoint. `*bytes` becomes its length, also when that
// is more than `capacity`, which fails with BUFFER_TOO_SMALL; `buffer` may be null when `capacity`
// is 0. Allocates as much again while it runs. While an operation with feedback is under way it
// fails with INVALID_SETTING: wait for it first.
GRADWIRE_API int gradwire_communicator_save_residuals(const gradwire_communicator* communicator,
                                                      void* buffer, size_t capacity, size_t* bytes);

// Continues with what was saved. Other bytes fail with BAD_FRAME and change nothing. Allocates.
// While an operation with feedback is under way it fails with INVALID_SETTING.
GRADWIRE_API int gradwire_communicator_load_residuals(gradwire_communicator* communicator,
                                                      const void* saved, size_t bytes);

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
