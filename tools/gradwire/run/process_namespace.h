// Processes that all end together, whatever they did to get away.
#pragma once

#include "base/file_descriptor.h"

namespace gradwire::cli {

/// A process namespace with a keeper as its first process. When the keeper ends, the kernel kills
/// every process inside, also those that left their group or session; and it ends when this object
/// or this whole process does, SIGKILL included.
class ProcessNamespace {
 public:
  /// From now on the calling thread's children are born inside, so call it on a thread that starts
  /// them and ends. Throws Error(unavailable) when the user may not.
  ProcessNamespace();

  /// Returns when nothing runs inside any more. Wait for the children of this process first: the
  /// kernel keeps a namespace until they are.
  ~ProcessNamespace();
  ProcessNamespace(const ProcessNamespace&) = delete;
  ProcessNamespace& operator=(const ProcessNamespace&) = delete;

 private:
  FileDescriptor lifeline_;  // the keeper reads its other end, and gets the end of file
  int keeper_ = -1;
};

}  // namespace gradwire::cli
