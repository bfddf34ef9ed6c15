// The subcommands of `gradwire`, one source file each. Each function adds its options, its help
// with examples and the callback that runs it. Callbacks throw `gradwire::Error`; main.cc turns it
// into one sentence and an exit code. One that ends with another program's exit code has said why
// and throws `CLI::RuntimeError` with the code. `run` does not come back: it becomes another
// program.
#pragma once

namespace CLI {
class App;
}

namespace gradwire::cli {

void add_bench_adapt(CLI::App& bench);
void add_bench_allreduce(CLI::App& bench);
void add_bench_codec(CLI::App& bench);
void add_bench_distortion(CLI::App& bench);
void add_bench_coder(CLI::App& bench);
void add_bench_select(CLI::App& bench);
void add_bench_plan(CLI::App& bench);
void add_bench_predict(CLI::App& bench);
void add_bench_train(CLI::App& bench);
void add_calibrate(CLI::App& gradwire);
void add_plan(CLI::App& gradwire);
void add_inspect(CLI::App& gradwire);
void add_hosts(CLI::App& gradwire);
void add_run(CLI::App& gradwire);
void add_schedule(CLI::App& gradwire);
void add_simulate(CLI::App& gradwire);
void add_trace(CLI::App& gradwire);

}  // namespace gradwire::cli
