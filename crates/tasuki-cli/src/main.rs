//! The `tasuki` binary: parses arguments, runs one command, prints its output and sets the exit code.
//!
//! Exit code 0: success. 1: refused or failed. 2: bad usage. Data goes to stdout, everything else to stderr.
//! This is also the only place that reads the real clock; commands receive the current time as an argument.

mod api_server_and_token_flags;
mod audit;
mod bench;
mod cert;
mod client;
mod completions;
mod config;
mod config_layers;
mod confirmation_prompt;
mod database_access;
mod demo_jobs;
mod doctor;
mod event;
mod failure;
mod fetch_all_pages;
mod flag_values;
mod job;
mod leader;
mod migrate;
mod node;
mod node_config_from_options;
mod node_rpc_and_coordinator;
#[cfg(test)]
mod reference_page;
mod release_unused_program_pages;
mod run;
mod run_node_until_stopped;
mod schedule;
mod setting;
mod task_submit;
mod token;
mod up;
mod view;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use jiff::Timestamp;

/// Job scheduler: creates one run for each planned time, event or request, executes a run on at most one worker at a time,
/// and keeps the history of all runs
#[derive(Parser)]
#[command(name = "tasuki", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    noun: Noun,
}

#[derive(Subcommand)]
enum Noun {
    /// Start a complete node in one process: leader, worker, API and, by default, a SQLite database
    Up(Box<up::UpCommand>),
    /// Start one node of a cluster whose nodes share a database
    Node(Box<node::NodeCommand>),
    /// Show the start-up configuration of a node
    Config(Box<config::ConfigCommand>),
    #[command(hide = true)]
    Spawner(run_node_until_stopped::SpawnerCommand),
    /// Create, change, list, trigger, pause and delete jobs
    Job(Box<job::JobCommand>),
    /// List, inspect, follow, cancel, retry and rerun runs
    Run(run::RunCommand),
    /// Submit tasks: runs of a job on request
    Task(task_submit::TaskCommand),
    /// Emit events and list the runs that they started
    Event(event::EventCommand),
    /// List, inspect, drain and detach workers
    Worker(worker::WorkerCommand),
    /// Show or demote the leader, the worker that plans runs
    Leader(leader::LeaderCommand),
    /// List, show and change the settings of the cluster
    Setting(setting::SettingCommand),
    /// List the audit entries
    Audit(audit::AuditCommand),
    /// List, create and revoke API tokens
    Token(token::TokenCommand),
    /// Create development certificates for node-to-node TLS
    #[command(subcommand)]
    Cert(CertVerb),
    /// Preview the fire times of a schedule
    #[command(subcommand)]
    Schedule(ScheduleVerb),
    /// Migrate the database schema to the version that this program needs
    Migrate(migrate::MigrateCommand),
    /// Check a database for inconsistencies
    Doctor(doctor::DoctorCommand),
    /// Measure the performance on this machine and database
    #[command(subcommand)]
    Bench(BenchVerb),
    /// Print a shell completion script
    Completions(completions::CompletionsCommand),
}

#[derive(Subcommand)]
enum BenchVerb {
    /// Measure how fast a database creates, claims, assigns, finishes and renews runs
    Store(bench::BenchStoreCommand),
    /// Measure how late scheduled runs start
    Fire(bench::BenchFireCommand),
    /// Measure how fast a node processes waiting tasks
    Drain(bench::BenchDrainCommand),
    /// Measure how fast tasks are submitted
    Enqueue(bench::BenchEnqueueCommand),
    /// Measure how long an idle node takes to start a submitted task
    Latency(bench::BenchLatencyCommand),
    /// Measure how fast a node runs commands
    Spawn(bench::BenchSpawnCommand),
    /// Measure whether many ended runs or many future runs slow a node down
    Growth(bench::BenchGrowthCommand),
}

impl BenchVerb {
    fn run(self) -> Result<String, failure::Failure> {
        let runtime = self.database().build_runtime()?;
        runtime.block_on(async {
            match self {
                Self::Store(bench) => bench.run().await,
                Self::Fire(bench) => bench.run().await,
                Self::Drain(bench) => bench.run().await,
                Self::Enqueue(bench) => bench.run().await,
                Self::Latency(bench) => bench.run().await,
                Self::Spawn(bench) => bench.run().await,
                Self::Growth(bench) => bench.run().await,
            }
        })
    }

    fn database(&self) -> &database_access::DatabaseOptions {
        match self {
            Self::Store(bench) => &bench.database,
            Self::Fire(bench) => &bench.database,
            Self::Drain(bench) => &bench.database,
            Self::Enqueue(bench) => &bench.database,
            Self::Latency(bench) => &bench.database,
            Self::Spawn(bench) => &bench.database,
            Self::Growth(bench) => &bench.database,
        }
    }
}

#[derive(Subcommand)]
enum CertVerb {
    /// Create a certificate authority and node certificates for development
    Dev(cert::CertDevCommand),
}

#[derive(Subcommand)]
enum ScheduleVerb {
    /// Describe a schedule and list its next fire times
    Preview(schedule::SchedulePreviewCommand),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().noun {
        Noun::Up(up) => up.run(),
        Noun::Node(node) => node.run(),
        Noun::Config(config) => config.run(Timestamp::now()),
        Noun::Spawner(spawner) => spawner.run(),
        Noun::Job(job) => job.run(Timestamp::now()),
        Noun::Run(run) => run.run(Timestamp::now()),
        Noun::Task(task) => task.run(Timestamp::now()),
        Noun::Event(event) => event.run(Timestamp::now()),
        Noun::Worker(worker) => worker.run(Timestamp::now()),
        Noun::Leader(leader) => leader.run(Timestamp::now()),
        Noun::Setting(setting) => setting.run(Timestamp::now()),
        Noun::Audit(audit) => audit.run(Timestamp::now()),
        Noun::Token(token) => token.run(Timestamp::now()),
        Noun::Cert(CertVerb::Dev(dev)) => dev.run(Timestamp::now()),
        Noun::Schedule(ScheduleVerb::Preview(preview)) => preview.run(Timestamp::now()),
        Noun::Bench(bench) => bench.run(),
        Noun::Migrate(migrate) => migrate.run(),
        Noun::Doctor(doctor) => doctor.run(Timestamp::now),
        Noun::Completions(completions) => completions.run(Cli::command()),
    };
    failure::print_outcome(outcome)
}
