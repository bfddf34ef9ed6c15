#include "transport/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <vector>

#include "gradwire/error.h"
#include "transport/mpi_transport.h"
#include "transport/routed.h"
#include "transport/shm.h"
#include "transport/tcp.h"

namespace gradwire {
namespace {

/// What a rank tells all others: a line for its neighbourhood, one for what it takes connections to
/// need, one for its listener in shared memory, then one per address.
struct Card {
  std::string neighbourhood;
  std::string terms;
  std::string shm_name;
  std::vector<std::string> addresses;

  std::string text() const {
    std::string lines = neighbourhood + "\n" + terms + "\n" + shm_name + "\n";
    for (const std::string& address : addresses) lines += address + "\n";
    return lines;
  }
  static Card read(const std::string& text) {
    Card card;
    std::istringstream lines(text);
    std::getline(lines, card.neighbourhood);
    std::getline(lines, card.terms);
    std::getline(lines, card.shm_name);
    for (std::string line; std::getline(lines, line);) card.addresses.push_back(line);
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
  while (first < cards.size() && cards[first].neighbourhood == cards[0].neighbourhood) ++first;
  if (cards.size() % first != 0) return 0;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    const bool starts_host = i % first == 0;
    if (starts_host && i > 0 && cards[i].neighbourhood == cards[i - 1].neighbourhood) return 0;
    if (!starts_host && cards[i].neighbourhood != cards[i - 1].neighbourhood) return 0;
  }
  return static_cast<std::uint32_t>(first);
}

bool uses_mpi(const RendezvousOptions& options) {
  return options.transport == "mpi" || (options.transport == "auto" && options.launched_by_mpi);
}

}  // namespace

Tls check_transport(const RendezvousOptions& options) {
  const std::string& name = options.transport;
  if (name != "auto" && name != "shm" && name != "tcp" && name != "mpi") {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no transport '{}'; take auto, shm, tcp or mpi", name));
  }
  return choose_encryption(options.encryption, !options.secret.empty(),
                           uses_mpi(options) ? "mpi" : name);
}

Connected rendezvous(Store& store, const RendezvousOptions& options) {
  const bool by_mpi = uses_mpi(options);
  const Tls tls = check_transport(options);
  const bool in_memory = options.transport == "shm" || options.transport == "auto";
  ShmListener by_memory = in_memory ? listen_shm() : ShmListener();
  TcpListener by_tcp = options.transport == "shm" || by_mpi
                           ? TcpListener()
                           : listen_tcp(options.interface, options.port);
  const Life life(store, options);  // begins when nothing can fail here any more
  const Job job = deal_job(store, options, life);
  const std::vector<Card> cards = exchange_cards(
      store, options, job, life,
      {shm_neighbourhood(), terms_of(options, tls), by_memory.name, by_tcp.addresses});
  check_terms(cards, options.me);

  std::vector<std::uint32_t> near;
  std::vector<std::uint32_t> far;
  Connected result;
  result.per_host = ranks_per_host(cards);
  for (std::uint32_t rank = 0; rank < options.count; ++rank) {
    if (rank == options.me) continue;
    const bool same = cards[rank].neighbourhood == cards[options.me].neighbourhood;
    if (same) ++result.on_this_host;
    if (!same && options.transport == "shm") {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("rank {} is on another host (or in another container or user) than rank "
                      "{}: shm cannot reach it, take auto or tcp",
                      rank, options.me));
    }
    (same && in_memory ? near : far).push_back(rank);
  }
  result.all_in_memory = far.empty();

  std::vector<std::vector<std::string>> addresses;
  std::vector<std::string> shm_names;
  for (const Card& card : cards) {
    addresses.push_back(card.addresses);
    shm_names.push_back(card.shm_name);
  }
  std::unique_ptr<Transport> memory;
  std::unique_ptr<Transport> network;
  if (!near.empty()) {
    memory = connect_shm({job, options.me, options.count, near, std::move(shm_names),
                          options.message_bytes, options.deadline},
                         std::move(by_memory));
  }
  if (by_mpi && !far.empty()) {
    network =
        connect_mpi({options.me, options.count, far, options.message_bytes, options.deadline});
  } else if (!far.empty() || near.empty()) {
    network = connect_tcp({job, options.me, options.count, far, std::move(addresses),
                           options.message_bytes, options.deadline, tls},
                          std::move(by_tcp));
  }
  result.transport = route(std::move(memory), near, std::move(network), options.count);
  return result;
}

}  // namespace gradwire
