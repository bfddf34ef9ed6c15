#include "run/scratch_folder.h"

#include <stdlib.h>

#include <filesystem>

#include "gradwire/error.h"

namespace gradwire::cli {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder() : path_((fs::temp_directory_path() / "gradwire-XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr) {
    throw Error(ErrorCode::io,
                "cannot make a temporary directory in " + fs::temp_directory_path().string());
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace gradwire::cli
