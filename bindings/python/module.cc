// gradwire._gradwire: what python/gradwire/__init__.py needs of the C++ interface, and no more.
// Users see the package, which carries the documentation.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "array_views.h"
#include "communicator_binding.h"
#include "gradwire/codec.h"
#include "gradwire/environment.h"
#include "gradwire/error.h"
#include "gradwire/frame.h"
#include "gradwire/isa.h"
#include "gradwire/random.h"
#include "gradwire/tensor.h"
#include "gradwire/way.h"
#include "tensor/into.h"

namespace gradwire::python {
namespace {

// -------------------------------------------------------------------------------------------------
// Errors

/// Becomes gradwire.Error with this code; finer than gradwire::Error, which calls every status that
/// a frame can have `bad_frame`.
class FrameError : public std::runtime_error {
 public:
  FrameError(const char* code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  const char* code() const noexcept { return code_; }

 private:
  const char* code_;
};

void raise_unless_ok(Status status) {
  if (status != Status::ok) throw FrameError(name_of(status), describe(status));
}

void set_python_error(nb::handle type, const char* message, const char* code) {
  nb::object error = type(message);
  error.attr("code") = code;
  PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& thrown, void* type) {
  try {
    std::rethrow_exception(thrown);
  } catch (const FrameError& error) {
    set_python_error(static_cast<PyObject*>(type), error.what(), error.code());
  } catch (const Error& error) {
    // Ctrl-C that struck all ranks: a peer's end may have come before our own look for signals.
    if (PyErr_CheckSignals() != 0) return;
    set_python_error(static_cast<PyObject*>(type), error.what(), name_of(error.code()));
  }
}

/// gradwire.Error, an exception with the attribute `code`.
void add_error(nb::module_& module) {
  nb::dict members;
  members["code"] = "";
  const char* doc =
      "What gradwire could not do: the message says why and what to do, ``code`` names the "
      "kind.\n\n"
      "Codes are ``invalid_spec`` (an unknown codec, key or value), ``unavailable`` (not on this\n"
      "CPU), ``invalid_argument``, and for frames ``truncated``, ``corrupt``, ``count_mismatch``,\n"
      "``unsupported_version``, ``unknown_codec`` and ``too_many_elements``; for ranks "
      "``timeout``\n"
      "and ``peer_failed``, whose messages name the rank.";
  nb::object type =
      nb::steal(PyErr_NewExceptionWithDoc("gradwire.Error", doc, PyExc_Exception, members.ptr()));
  if (!type.is_valid()) throw nb::python_error();
  module.attr("Error") = type;
  nb::register_exception_translator(translate, type.release().ptr());  // lives as long as we do
}

// -------------------------------------------------------------------------------------------------
// Arguments

/// A Python integer from 0 to 2**64 - 1.
std::uint64_t natural(nb::handle value, const char* name) {
  const auto words = [&] {
    PyErr_Clear();
    return std::string(name) + " is " + nb::repr(value).c_str() +
           "; give a whole number from 0 to 2**64 - 1";
  };
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::type_error(words().c_str());
  const std::uint64_t number = PyLong_AsUnsignedLongLong(index.ptr());
  if (number == UINT64_MAX && PyErr_Occurred() != nullptr) {
    throw nb::value_error(words().c_str());
  }
  return number;
}

RandomKey random_key(nb::handle seed, nb::handle step, nb::handle tensor, nb::handle rank) {
  return {.seed = natural(seed, "seed"),
          .step = natural(step, "step"),
          .tensor = natural(tensor, "tensor"),
          .rank = natural(rank, "rank")};
}

EncodeOptions encode_options(const RandomKey& key, nb::handle first_element) {
  const EncodeOptions options{
      .random = key, .first_element = natural(first_element, "first_element"), .turn = key.step};
  if (options.first_element % kSliceAlignment != 0) {
    throw nb::value_error("first_element must be a multiple of 128: slices start there");
  }
  return options;
}

// -------------------------------------------------------------------------------------------------
// Encoding

/// A bytes object made at its largest and cut to length, so that nothing is copied.
nb::object encode_segments(std::span<const Segment> segments) {
  const std::size_t capacity = max_frame_bytes(segments);
  nb::object frame =
      nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(capacity)));
  if (!frame.is_valid()) throw nb::python_error();
  auto* const bytes = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(frame.ptr()));
  Encoded done;
  {
    const nb::gil_scoped_release released;
    done = encode_frame(segments, {bytes, capacity});
  }
  raise_unless_ok(done.status);
  PyObject* resized = frame.release().ptr();
  if (_PyBytes_Resize(&resized, static_cast<Py_ssize_t>(done.bytes)) != 0) throw nb::python_error();
  return nb::steal(resized);
}

nb::object encode(const Codec& codec, nb::handle x, nb::handle seed, nb::handle step,
                  nb::handle tensor, nb::handle rank, nb::handle first_element) {
  const EncodeOptions options = encode_options(random_key(seed, step, tensor, rank), first_element);
  const InputArray input(x, "x");
  const Segment segment{.codec = codec, .values = input.view(), .options = options};
  return encode_segments({&segment, 1});
}

/// `arrays[i]` is encoded by `codecs[i]` and draws as tensor number `tensor + i`.
nb::object encode_many(const std::vector<Codec>& codecs, const std::vector<nb::object>& arrays,
                       nb::handle seed, nb::handle step, nb::handle tensor, nb::handle rank) {
  RandomKey key = random_key(seed, step, tensor, rank);
  std::vector<InputArray> inputs;
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    inputs.emplace_back(arrays[i], "x");
    segments.push_back({.codec = codecs.at(i),
                        .values = inputs.back().view(),
                        .options = {.random = key, .turn = key.step}});
    ++key.tensor;
  }
  return encode_segments(segments);
}

std::size_t frame_bound(const Codec& codec, std::size_t count) {
  return max_frame_bytes(codec, count);
}

Codec fit(const Codec& codec, nb::handle x) {
  const InputArray input(x, "x");
  const nb::gil_scoped_release released;
  return codec.fit(input.view());
}

// -------------------------------------------------------------------------------------------------
// Decoding

/// Checks the whole frame, which takes as long as reading it, without the GIL.
FrameReader open_frame(const FrameBytes& bytes) {
  const nb::gil_scoped_release released;
  return FrameReader(bytes.span());
}

/// The index of the segment to decode; None is the only one.
std::size_t segment_index(const FrameReader& frame, nb::handle segment) {
  raise_unless_ok(frame.status());
  const std::size_t count = frame.segment_count();
  const std::string holds = "the frame holds " + std::to_string(count) + " segments";
  if (segment.is_none()) {
    if (count == 1) return 0;
    throw FrameError("count_mismatch", holds + "; pass segment= to say which");
  }
  const std::uint64_t index = natural(segment, "segment");
  if (index < count) return index;
  throw nb::index_error((holds + ", there is none with index " + std::to_string(index)).c_str());
}

/// An uninitialised NumPy array for the numbers of a segment. NumPy has no bfloat16: float32 holds
/// it.
nb::object new_array(const SegmentView& segment, nb::handle max_elements) {
  const std::uint64_t limit = natural(max_elements, "max_elements");
  if (segment.count > limit) {
    throw FrameError("too_many_elements",
                     "the frame claims " + std::to_string(segment.count) +
                         " elements, more than max_elements = " + std::to_string(limit) +
                         "; if you trust its sender, raise max_elements or pass out");
  }
  const char* dtype = segment.dtype == Dtype::f16 ? "float16" : "float32";
  return nb::module_::import_("numpy").attr("empty")(segment.count, dtype);
}

void decode_into(FrameReader& frame, std::size_t index, nb::handle out, Into into) {
  const OutputArray output(out, "out");
  const std::size_t count = frame.segment(index).count;
  if (output.view().count != count) {
    throw nb::value_error(("out has " + std::to_string(output.view().count) +
                           " elements and the frame " + std::to_string(count) +
                           "; pass an array of the frame's size")
                              .c_str());
  }
  Status status;
  {
    const nb::gil_scoped_release released;
    status = into == Into::add ? frame.decode_add(index, output.view())
                               : frame.decode(index, output.view());
  }
  raise_unless_ok(status);
}

nb::object decode(nb::handle frame, nb::object out, nb::handle segment, nb::handle max_elements) {
  const FrameBytes bytes(frame);
  FrameReader reader = open_frame(bytes);
  const std::size_t index = segment_index(reader, segment);
  if (out.is_none()) out = new_array(reader.segment(index), max_elements);
  decode_into(reader, index, out, Into::assign);
  return out;
}

void decode_add(nb::handle frame, nb::handle out, nb::handle segment) {
  const FrameBytes bytes(frame);
  FrameReader reader = open_frame(bytes);
  decode_into(reader, segment_index(reader, segment), out, Into::add);
}

// -------------------------------------------------------------------------------------------------
// The rest

/// (spec, dtype, count, payload bytes) per segment.
nb::list inspect(nb::handle frame) {
  const FrameBytes bytes(frame);
  FrameReader reader = open_frame(bytes);
  raise_unless_ok(reader.status());
  nb::list segments;
  for (std::size_t i = 0; i < reader.segment_count(); ++i) {
    const SegmentView segment = reader.segment(i);
    segments.append(nb::make_tuple(segment.codec.spec(), gradwire::name_of(segment.dtype),
                                   segment.count, segment.payload.size()));
  }
  return segments;
}

Codec parse_codec(std::string_view spec) {
  try {
    return Codec::parse(spec);
  } catch (const Error&) {
    std::string codec;
    try {
      codec = Way::parse(spec).codec.spec();
    } catch (const Error&) {  // no way either
    }
    if (codec.empty()) throw;
    throw Error(ErrorCode::invalid_spec, "'" + std::string(spec) +
                                             "' is a way, which all_reduce and compress take; its "
                                             "codec is '" +
                                             codec + "'");
  }
}

nb::tuple traits(const Codec& codec) {
  const Traits traits = codec.traits();
  return nb::make_tuple(traits.lossless, traits.unbiased, traits.fixed_size, traits.keeps_zeros,
                        traits.sparse);
}

nb::object random_array(std::size_t count, nb::handle seed, nb::handle step, nb::handle tensor,
                        nb::handle rank, nb::handle first_element) {
  const RandomKey key = random_key(seed, step, tensor, rank);
  const std::uint64_t first = natural(first_element, "first_element");
  nb::object out = nb::module_::import_("numpy").attr("empty")(count, "uint16");
  const auto array = nb::cast<nb::ndarray<std::uint16_t, nb::ndim<1>, nb::c_contig>>(out);
  std::uint16_t* const bits = array.data();
  for (std::size_t i = 0; i < count; ++i) bits[i] = random_bits(key, first + i);
  return out;
}

}  // namespace
}  // namespace gradwire::python

NB_MODULE(_gradwire, module) {
  using namespace gradwire::python;
  using gradwire::Codec;
  using nb::literals::operator""_a;
  nb::set_leak_warnings(false);  // a library does not print; codecs may live until the end
  add_error(module);
  module.attr("__version__") = GRADWIRE_VERSION;

  // None is taken wherever an object is, to be refused with a better sentence than nanobind's.
  nb::class_<Codec>(module, "Codec")
      .def_static("parse", &parse_codec, "spec"_a)
      .def("spec", &Codec::spec)
      .def("name", &Codec::name)
      .def("traits", &traits)
      .def("fit", &fit, "x"_a.none())
      .def("max_frame_bytes", &frame_bound, "count"_a)
      .def("encode", &encode, "x"_a.none(), "seed"_a, "step"_a, "tensor"_a, "rank"_a,
           "first_element"_a)
      .def("equals", [](const Codec& a, const Codec& b) { return a == b; });

  module.def("encode_many", &encode_many, "codecs"_a, "arrays"_a, "seed"_a, "step"_a, "tensor"_a,
             "rank"_a);
  module.def("decode", &decode, "frame"_a.none(), "out"_a.none(), "segment"_a.none(),
             "max_elements"_a);
  module.def("decode_add", &decode_add, "frame"_a.none(), "out"_a.none(), "segment"_a.none());
  module.def("inspect", &inspect, "frame"_a.none());
  module.def("random_bits", &random_array, "count"_a, "seed"_a, "step"_a, "tensor"_a, "rank"_a,
             "first_element"_a);
  module.def("codecs", &gradwire::list_codecs);
  module.def("isas", &gradwire::available_isas);
  module.def("isa", &gradwire::current_isa);
  module.def("use_isa", &gradwire::use_isa, "name"_a);
  add_communicator(module);
  module.def("configure_from_environment", &gradwire::configure_from_environment);
}
