//! Execution of attempts: commands through the spawner, functions as tasks; captured output and result files.

pub mod attempt_input_and_result;
pub(crate) mod attempt_log_writer;
pub(crate) mod build_launch_spec;
pub(crate) mod commands;
pub(crate) mod complete_ended_commands;
pub(crate) mod executors;
pub(crate) mod functions;
pub(crate) mod log_creation_batcher;
pub(crate) mod read_command_result_file;
pub(crate) mod work_dirs;
