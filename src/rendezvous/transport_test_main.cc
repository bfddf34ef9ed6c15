// Ranks are threads of one process, or with these options, which all processes get, processes:
//
//   mpirun -n 4 transport_test --transport=mpi --store=mpi
//   gradwire hosts --count 4 -- transport_test --transport=tcp --store=tcp:10.77.0.1:29500
//
// Without mpi, rank and size are in RANK and WORLD_SIZE. With --secret=TEXT tcp is encrypted.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "transport/transport_test_party.h"

namespace {

std::string option(int argc, char** argv, std::string_view name) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    if (text.starts_with(name)) return std::string(text.substr(name.size()));
  }
  return {};
}

std::uint32_t number(const char* variable, std::uint32_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::atoi(text));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string store = option(argc, argv, "--store=");
  if (!store.empty()) {  // before the suite asks for its parties
    gradwire::test::use_processes(option(argc, argv, "--transport="), store,
                                  option(argc, argv, "--secret="), number("RANK", 0),
                                  number("WORLD_SIZE", 1));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
