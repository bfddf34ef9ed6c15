// Writes the golden files: make_golden <directory>, which is tests/golden. The files are part of
// the format: they change with its version, or get company, and are never made again because a test
// failed.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "golden_cases.h"

namespace gradwire::golden {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void write_good(const fs::path& directory) {
  fs::create_directories(directory);
  std::FILE* const expected = std::fopen((directory / "expected.tsv").c_str(), "w");
  std::fprintf(expected, "frame\tsegment\tcount\thash\n");
  for (const GoldenCase& golden : golden_cases()) {
    const Bytes bytes = encode(golden);
    write(directory / (golden.name + ".frame"), bytes);
    FrameReader frame(bytes);
    check(frame.status());
    for (std::size_t i = 0; i < frame.segment_count(); ++i) {
      std::vector<float> numbers(frame.segment(i).count);
      check(frame.decode(i, {numbers.data(), numbers.size(), Dtype::f32}));
      std::fprintf(expected, "%s\t%zu\t%zu\t%016" PRIx64 "\n", golden.name.c_str(), i,
                   numbers.size(), hash_of(numbers));
    }
  }
  std::fclose(expected);
}

void write_bad(const fs::path& directory) {
  fs::create_directories(directory);
  std::FILE* const expected = std::fopen((directory / "expected.tsv").c_str(), "w");
  std::fprintf(expected, "frame\tstatus\n");
  for (const BadCase& bad : bad_cases()) {
    write(directory / (bad.name + ".frame"), bad.frame);
    std::fprintf(expected, "%s\t%s\n", bad.name.c_str(), name_of(bad.status));
  }
  std::fclose(expected);
}

}  // namespace
}  // namespace gradwire::golden

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_golden <directory>\n");
    return EXIT_FAILURE;
  }
  gradwire::golden::write_good(std::filesystem::path(argv[1]) / "v1");
  gradwire::golden::write_bad(std::filesystem::path(argv[1]) / "bad");
  return EXIT_SUCCESS;
}
