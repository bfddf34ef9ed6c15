#include "plan/calibration.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "gradwire/error.h"

namespace gradwire {
namespace {

Costs measured_on(const MachineIdentity& machine) {
  const CostTable table({{1024, 1e-6}});
  return {.source = "measured in a test",
          .host = machine.host,
          .isa = machine.isa,
          .version = machine.version,
          .inside = {},
          .between = {},
          .codecs = {{"none", {.encode = table, .decode = table, .preparation = {}}}}};
}

class Calibration : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::string load(const Costs& costs) {
    std::ofstream(path_) << text_of(costs);
    try {
      EXPECT_EQ(load_costs(path_), costs);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "";
  }

  std::string path_ = testing::TempDir() + "gradwire_calibration_test.json";
};

TEST_F(Calibration, of_this_machine_is_taken) {
  EXPECT_FALSE(this_machine().host.empty());
  EXPECT_FALSE(this_machine().version.empty());
  EXPECT_EQ(load(measured_on(this_machine())), "");
}

TEST_F(Calibration, of_another_machine_is_refused_in_one_sentence) {
  MachineIdentity other = this_machine();
  other.host = "node7";
  EXPECT_TRUE(load(measured_on(other)).starts_with(path_ + ": these costs were measured on node7"));
  other = this_machine();
  other.isa = "sse9";
  EXPECT_NE(load(measured_on(other)).find("sse9"), std::string::npos);
  other = this_machine();
  other.version = "0.0.0";
  const std::string message = load(measured_on(other));
  EXPECT_NE(message.find("gradwire 0.0.0, and this is"), std::string::npos) << message;
  EXPECT_NE(message.find("by gradwire calibrate"), std::string::npos) << message;
}

TEST_F(Calibration, of_no_machine_holds_everywhere) {
  EXPECT_EQ(load(measured_on({"", "any", "0.0.0"})), "");
}

TEST_F(Calibration, files_are_named) {
  EXPECT_EQ(calibration_file_name({"node7", "avx2", "1"}), "costs-node7-avx2.json");
  try {
    load_costs("/no/such/costs.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find("/no/such/costs.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace gradwire
