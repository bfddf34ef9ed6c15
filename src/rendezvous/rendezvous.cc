#include "rendezvous/rendezvous.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "gradwire/error.h"
#include "transport/transport_kinds.h"

namespace gradwire {
namespace {

using Kinds = std::vector<const TransportKind*>;

/// Those of the list that `chosen` takes.
template <class Chosen>
Kinds kinds_where(Chosen chosen) {
  Kinds kinds;
  std::copy_if(kTransportKinds.begin(), kTransportKinds.end(), std::back_inserter(kinds),
               [&](const TransportKind* kind) { return chosen(*kind); });
  return kinds;
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Equal for ranks that can share memory: same boot, same network namespace, same user.
std::string memory_domain() {
  struct stat network {};
  stat("/proc/self/ns/net", &network);
  return fmt::format("{} {} {}", first_line("/proc/sys/kernel/random/boot_id"), network.st_ino,
                     geteuid());
}

/// What a rank tells all others: a line for its memory domain, one for what it takes connections to
/// need, one with the address of every kind that listens; the last of them may have several.
struct Card {
  std::string domain;
  std::string terms;
  std::map<const TransportKind*, std::vector<std::string>> addresses;

  static Kinds listening() {
    return kinds_where([](const TransportKind& kind) { return kind.listen != nullptr; });
  }
  std::string text() const {
    const Kinds kinds = listening();
    std::string text = domain + "\n" + terms + "\n";
    for (const TransportKind* kind : kinds) {
      const auto found = addresses.find(kind);
      std::vector<std::string> lines;
      if (found != addresses.end()) lines = found->second;
      if (kind != kinds.back()) lines.resize(1);
      for (const std::string& line : lines) text += line + "\n";
    }
    return text;
  }
  static Card read(const std::string& text) {
    const Kinds kinds = listening();
    Card card;
    std::istringstream lines(text);
    std::getline(lines, card.domain);
    std::getline(lines, card.terms);
    for (const TransportKind* kind : kinds) {
      std::string line;
      if (kind != kinds.back()) {
        std::getline(lines, line);
        card.addresses[kind] = {line};
        continue;
      }
      while (std::getline(lines, line)) card.addresses[kind].push_back(line);
    }
    return card;
  }
};

/// A rank's place in a store that may have served earlier lives of the job, all of whose ranks then
/// came as often.
class Life {
 public:
  Life(Store& store, const RendezvousOptions& options)
      : store_(store), options_(options), number_(count(options.me, 1)) {}

  /// Where rank 0 writes the job of this life.
  std::string job_key() const { return fmt::format("job-{}", number_); }

  /// What a rank writes to the store; if it does not, the error names it.
  std::string written_by(std::uint32_t rank, const std::string& key) const {
    const auto left = options_.deadline - Clock::now();
    try {  // some time is left to find out why
      return store_.get(key, options_.deadline - std::min<Clock::duration>(left / 10, kToFindOut));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      throw Error(error.code(),
                  fmt::format("rank {} did not come: {}{}", rank, error.what(), other_life(rank)));
    }
  }

 private:
  static constexpr auto kToFindOut = std::chrono::seconds(1);

  std::int64_t count(std::uint32_t rank, std::int64_t more) const {
    return store_.add(fmt::format("lives-{}", rank), more, options_.deadline);
  }

  std::string other_life(std::uint32_t rank) const {
    std::int64_t lives = 0;
    try {
      lives = count(rank, 0);
    } catch (const Error&) {
    }
    if (lives == 0 || lives == number_) return {};
    return fmt::format(
        "; it has come to this store {} times and rank {} {} times: start all ranks together, with "
        "a new store",
        lives, options_.me, number_);
  }

  Store& store_;
  const RendezvousOptions& options_;
  std::int64_t number_;
};

/// Rank 0 draws the job; the others read it. With a secret the key is made of it and stays out of
/// the store.
Job deal_job(Store& store, const RendezvousOptions& options, const Life& life) {
  if (options.me == 0) {
    Job job = Job::random();
    std::string text(reinterpret_cast<const char*>(job.id.data()), job.id.size());
    if (options.secret.empty()) {
      text.append(reinterpret_cast<const char*>(job.key.data()), job.key.size());
    } else {
      job.set_key(options.secret);
    }
    store.set(life.job_key(), text, options.deadline);
    return job;
  }
  Job job = Job::random();  // a key that nobody has, should none be dealt: terms will differ
  const std::string text = life.written_by(0, life.job_key());
  const bool with_key = text.size() == job.id.size() + job.key.size();
  if (!with_key && text.size() != job.id.size()) {
    throw Error(ErrorCode::io, "the store holds something else than this job: use a new one");
  }
  std::memcpy(job.id.data(), text.data(), job.id.size());
  if (!options.secret.empty()) {
    job.set_key(options.secret);
  } else if (with_key) {
    std::memcpy(job.key.data(), text.data() + job.id.size(), job.key.size());
  }
  return job;
}

std::string terms_of(const RendezvousOptions& options, const Tls& tls) {
  const bool certificates = !options.encryption.files.certificate.empty();
  return fmt::format("{} ranks, {} and {}{}", options.count,
                     options.secret.empty() ? "no secret" : "a secret",
                     !tls           ? "no encryption"
                     : certificates ? "TLS by certificates"
                                    : "TLS by the secret",
                     options.traced ? ", with a trace" : "");
}

/// All ranks see all cards, so all of them get the error, at once; where numbers of ranks differ,
/// those with the smallest do.
void check_terms(const std::vector<Card>& cards, std::uint32_t me) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].terms == cards[me].terms) continue;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("rank {} was given {}, and rank {} {}: give all ranks the same number "
                    "of ranks, secret and encryption, a trace to all or to none, and jobs of other "
                    "sizes other stores",
                    me, cards[me].terms, rank, cards[rank].terms));
  }
}

std::vector<Card> exchange_cards(Store& store, const RendezvousOptions& options, const Job& job,
                                 const Life& life, const Card& own) {
  // The job's id in the key keeps cards of an earlier job in the same store apart.
  const auto key = [&](std::uint32_t rank) { return fmt::format("{}-{}", job.id_text(), rank); };
  store.set(key(options.me), own.text(), options.deadline);
  std::vector<Card> cards;
  for (std::uint32_t rank = 0; rank < options.count; ++rank) {
    cards.push_back(rank == options.me ? own : Card::read(life.written_by(rank, key(rank))));
  }
  return cards;
}

std::uint32_t ranks_per_host(const std::vector<Card>& cards) {
  std::size_t first = 1;
  while (first < cards.size() && cards[first].domain == cards[0].domain) ++first;
  if (cards.size() % first != 0) return 0;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    const bool starts_host = i % first == 0;
    if (starts_host && i > 0 && cards[i].domain == cards[i - 1].domain) return 0;
    if (!starts_host && cards[i].domain != cards[i - 1].domain) return 0;
  }
  return static_cast<std::uint32_t>(first);
}

/// By preference: a peer is reached by the first that can.
Kinds kinds_of(const RendezvousOptions& options) {
  const auto other =
      options.launched_by_mpi ? TransportKind::Auto::without_mpi : TransportKind::Auto::with_mpi;
  Kinds kinds = kinds_where([&](const TransportKind& kind) {
    return options.transport == "auto" ? kind.in_auto != other : options.transport == kind.name;
  });
  if (!kinds.empty()) return kinds;
  std::string names = "auto";
  for (const TransportKind* kind : kTransportKinds) {
    names += fmt::format("{}{}", kind == kTransportKinds.back() ? " or " : ", ", kind->name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no transport '{}'; take {}", options.transport, names));
}

const TransportKind* kind_for(const Kinds& kinds, std::uint32_t peer, bool same_host,
                              std::uint32_t me) {
  const auto reaches = [&](const TransportKind* kind) {
    return same_host || kind->reach == TransportKind::Reach::everywhere;
  };
  const auto found = std::find_if(kinds.begin(), kinds.end(), reaches);
  if (found != kinds.end()) return *found;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("rank {} is on another host (or in another container or user) than rank "
                          "{}: {} cannot reach it, take auto or tcp",
                          peer, me, kinds.back()->name));
}

}  // namespace

Tls check_transport(const RendezvousOptions& options) {
  return choose_encryption(options.encryption, !options.secret.empty(), *kinds_of(options).back());
}

Connected rendezvous(Store& store, const RendezvousOptions& options) {
  const Kinds kinds = kinds_of(options);
  const Tls tls = check_transport(options);
  Card own{memory_domain(), terms_of(options, tls), {}};
  std::map<const TransportKind*, Listener> listeners;
  for (const TransportKind* kind : kinds) {
    if (kind->listen == nullptr) continue;
    listeners[kind] = kind->listen(options.interface, options.port);
    own.addresses[kind] = listeners[kind].addresses;
  }
  const Life life(store, options);  // begins when nothing can fail here any more
  const Job job = deal_job(store, options, life);
  std::vector<Card> cards = exchange_cards(store, options, job, life, own);
  check_terms(cards, options.me);

  Connected result{.router = nullptr, .per_host = ranks_per_host(cards), .all_in_memory = true};
  std::map<const TransportKind*, std::vector<std::uint32_t>> peers;
  for (std::uint32_t rank = 0; rank < options.count; ++rank) {
    if (rank == options.me) continue;
    const bool same_host = cards[rank].domain == own.domain;
    const TransportKind* const kind = kind_for(kinds, rank, same_host, options.me);
    peers[kind].push_back(rank);
    result.on_this_host += same_host;
    result.all_in_memory &= kind->reach == TransportKind::Reach::host;
  }

  std::vector<Router::Route> routes;
  for (const TransportKind* kind : kinds) {
    if (peers[kind].empty()) continue;
    std::vector<std::vector<std::string>> addresses;
    for (Card& card : cards) addresses.push_back(std::move(card.addresses[kind]));
    const TransportOptions own_end{.job = job,
                                   .me = options.me,
                                   .count = options.count,
                                   .peers = peers[kind],
                                   .addresses = std::move(addresses),
                                   .message_bytes = options.message_bytes,
                                   .deadline = options.deadline,
                                   .tls = tls};
    routes.push_back({kind->connect(own_end, std::move(listeners[kind])), peers[kind]});
  }
  result.router = std::make_unique<Router>(std::move(routes), options.count);
  return result;
}

}  // namespace gradwire
