// A small key-value store that rank 0 serves while ranks connect.
//
// A request is a line "set KEY LENGTH" with LENGTH bytes behind it, or "get KEY"; the answer to
// both is a line with a length and as many bytes. A get is answered when the key is there. Whoever
// can reach the port can ask: with `ConnectOptions::secret` nothing secret is in the store.
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "gradwire/error.h"
#include "transport/file_descriptor.h"
#include "transport/store.h"
#include "transport/tcp.h"

namespace gradwire {
namespace {

constexpr std::size_t kMaxKey = 256;
constexpr std::size_t kMaxValue = 65536;
constexpr std::size_t kMaxClients = 4096;
constexpr std::size_t kMaxKeys = 65536;

/// "KEY LENGTH" of a set.
struct SetLine {
  std::string key;
  std::size_t length = 0;
};

bool parse_set(std::string_view rest, SetLine& line) {
  const std::size_t space = rest.rfind(' ');
  if (space == std::string_view::npos) return false;
  line.key = rest.substr(0, space);
  const std::string_view digits = rest.substr(space + 1);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), line.length);
  return error == std::errc() && end == digits.data() + digits.size() && line.length <= kMaxValue;
}

struct Client {
  FileDescriptor socket;
  std::string input;
  std::string waits_for;  // a key; empty: nothing
  bool waiting = false;
};

class Server {
 public:
  explicit Server(std::uint16_t port)
      : listener_(listen_tcp("", port).socket), stop_(eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::jthread([this] { run(); });
  }
  ~Server() { eventfd_write(stop_.get(), 1); }

 private:
  void run() {
    while (true) {
      std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Client& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});
      poll(polled.data(), polled.size(), -1);
      if (polled[0].revents != 0) return;
      for (std::size_t i = clients_.size(); i-- > 0;) {
        if (polled[i + 2].revents == 0 || hear(clients_[i])) continue;
        clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (polled[1].revents != 0) open();
      for (Client& client : clients_) answer_waiting(client);
    }
  }

  void open() {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket && clients_.size() < kMaxClients)
      clients_.push_back({std::move(socket), {}, {}, false});
  }

  /// False when the client is to be forgotten.
  bool hear(Client& client) {
    char bytes[4096];
    const ssize_t n = recv(client.socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR);
    client.input.append(bytes, static_cast<std::size_t>(n));
    if (client.input.size() > kMaxKey + kMaxValue + 64) return false;
    return obey(client);
  }

  bool obey(Client& client) {
    const std::size_t end = client.input.find('\n');
    if (end == std::string::npos) return client.input.size() <= kMaxKey + 32;
    const std::string line = client.input.substr(0, end);
    if (line.starts_with("get ") && line.size() <= kMaxKey + 4) {
      client.waits_for = line.substr(4);
      client.waiting = true;
      client.input.erase(0, end + 1);
      return true;
    }
    SetLine set;
    if (!line.starts_with("set ") || !parse_set(std::string_view(line).substr(4), set))
      return false;
    if (client.input.size() < end + 1 + set.length) return true;
    if (values_.size() >= kMaxKeys) return false;
    values_[set.key] = client.input.substr(end + 1, set.length);
    client.input.erase(0, end + 1 + set.length);
    return reply(client, "");
  }

  void answer_waiting(Client& client) {
    const auto found = client.waiting ? values_.find(client.waits_for) : values_.end();
    if (found == values_.end()) return;
    client.waiting = false;
    reply(client, found->second);
  }

  static bool reply(const Client& client, const std::string& value) {
    const std::string text = fmt::format("{}\n{}", value.size(), value);
    return send(client.socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(text.size());
  }

  FileDescriptor listener_, stop_;
  std::vector<Client> clients_;
  std::map<std::string, std::string> values_;
  std::jthread thread_;
};

FileDescriptor call(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return {};
  FileDescriptor connected;
  for (const addrinfo* each = found; each != nullptr && !connected; each = each->ai_next) {
    FileDescriptor socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0) connected = std::move(socket);
  }
  freeaddrinfo(found);
  return connected;
}

class TcpStore final : public Store {
 public:
  TcpStore(const std::string& host, const std::string& port, bool serves, Deadline deadline)
      : where_(host + ":" + port) {
    if (serves) server_ = std::make_unique<Server>(static_cast<std::uint16_t>(std::stoi(port)));
    while (!(socket_ = call(serves ? "localhost" : host, port))) {
      if (Clock::now() >= deadline) throw late("does not answer");
      poll(nullptr, 0, 20);
    }
  }

  void set(const std::string& key, const std::string& value) override {
    ask(fmt::format("set {} {}\n{}", key, value.size(), value),
        Clock::now() + std::chrono::seconds(30));
  }
  std::string get(const std::string& key, Deadline deadline) override {
    return ask(fmt::format("get {}\n", key), deadline);
  }

 private:
  Error late(const char* what) const {
    return {ErrorCode::timeout,
            fmt::format("the store {} {} before the deadline: is rank 0 running there, and do all "
                        "ranks use the same store?",
                        where_, what)};
  }

  std::string ask(const std::string& request, Deadline deadline) {
    if (send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request.size())) {
      throw Error(ErrorCode::peer_failed, "rank 0, which serves the store, is gone");
    }
    std::string answer;
    while (true) {
      const std::size_t end = answer.find('\n');
      if (end != std::string::npos) {
        const std::size_t length = std::strtoull(answer.c_str(), nullptr, 10);
        if (answer.size() == end + 1 + length) return answer.substr(end + 1);
      }
      pollfd polled{socket_.get(), POLLIN, 0};
      if (poll(&polled, 1, 50) <= 0) {
        if (Clock::now() >= deadline) throw late("has no answer: not all ranks have come");
        continue;
      }
      char bytes[4096];
      const ssize_t n = recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (n <= 0) throw Error(ErrorCode::peer_failed, "rank 0, which serves the store, is gone");
      answer.append(bytes, static_cast<std::size_t>(n));
    }
  }

  std::string where_;
  std::unique_ptr<Server> server_;
  FileDescriptor socket_;
};

}  // namespace

std::unique_ptr<Store> open_tcp_store(const std::string& host, const std::string& port, bool serves,
                                      Deadline deadline) {
  return std::make_unique<TcpStore>(host, port, serves, deadline);
}

}  // namespace gradwire
