//! Execution of runs: commands through the spawner, functions as tasks, their output and their results.

pub mod attempt;
pub(crate) mod commands;
pub(crate) mod ends;
pub(crate) mod folders;
pub(crate) mod functions;
pub(crate) mod hands;
pub(crate) mod keeper;
pub(crate) mod launch;
pub(crate) mod logs;
pub(crate) mod results;
