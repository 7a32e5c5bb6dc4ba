//! `cargo xtask mutants`: a mutation test of the guards of the transition table.
//!
//! Each mutant removes one guard of one transition, in a copy of the working tree. The contract tests of the store must
//! then fail: otherwise the guard could get lost without any test noticing. The list of mutants is in `xtask/mutants`.

mod list;
mod runner;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use list::{Database, Mutant};
use runner::{Journal, Runner, Verdict};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run only mutants whose transition, guard or file contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Run only mutants of this database
    #[arg(long, value_enum)]
    database: Option<Database>,

    /// Run only every Nth mutant, starting with number K
    #[arg(long, value_name = "K/N", value_parser = parse_shard)]
    shard: Option<(usize, usize)>,

    /// Only list the mutants
    #[arg(long)]
    list: bool,

    /// Journal file of results; a mutant that was caught is not repeated while the sources of the store stay the same
    #[arg(long, default_value = "target/mutants.jsonl")]
    journal: PathBuf,

    /// Folder of the copy of the working tree and of its builds, kept between runs
    #[arg(long, default_value = "target/mutants")]
    folder: PathBuf,
}

fn parse_shard(text: &str) -> Result<(usize, usize), String> {
    list::parse_pair(text, "/").ok_or_else(|| "not K/N with numbers K from 1 to N".to_owned())
}

/// A mutant and what the tests said about it.
struct TestedMutant {
    mutant: Mutant,
    verdict: Verdict,
    duration: Duration,
}

/// Runs the chosen mutants and prints the table of results. Fails if a guard is not tested.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match run_or_list(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_or_list(arguments: &Arguments) -> Result<bool, String> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask has no parent folder")?;
    let all = list::read(root)?;
    for mutant in &all {
        mutant
            .changed_files(root)
            .map_err(|error| format!("xtask/mutants is out of date: {error}"))?;
    }
    let mutants = choose(all, arguments);
    if arguments.list {
        for mutant in &mutants {
            println!("{:<62} {}", mutant.to_string(), mutant.edits[0].file);
        }
        println!("{} mutants", mutants.len());
        return Ok(true);
    }
    if mutants.is_empty() {
        return Err("no mutant matches these options; list them with --list".into());
    }
    check_services(&mutants)?;
    let folder = root.join(&arguments.folder);
    let runner = Runner::new(root, &folder)?;
    let mut journal = Journal::open(&root.join(&arguments.journal), runner.tree())?;
    let tested = test_all(mutants, &runner, &mut journal)?;
    print!("{}", table(&tested));
    Ok(tested.iter().all(|tested| matches!(tested.verdict, Verdict::Caught { .. })))
}

fn choose(mutants: Vec<Mutant>, arguments: &Arguments) -> Vec<Mutant> {
    let Arguments { only, database, shard, .. } = arguments;
    let (first, step) = shard.unwrap_or((1, 1));
    mutants
        .into_iter()
        .filter(|mutant| only.as_ref().is_none_or(|only| mutant.matches(only)))
        .filter(|mutant| database.is_none_or(|database| mutant.database == database))
        .skip(first - 1)
        .step_by(step)
        .collect()
}

/// Checks that the servers of the databases run.
fn check_services(mutants: &[Mutant]) -> Result<(), String> {
    for variable in mutants.iter().filter_map(|mutant| mutant.database.server_variable()) {
        if std::env::var_os(variable).is_none() {
            return Err(format!(
                "{variable} is not set, so there is no server for the contract tests; \
                 run `./test --with-services cargo xtask mutants`, or choose --database sqlite"
            ));
        }
    }
    Ok(())
}

fn test_all(
    mutants: Vec<Mutant>,
    runner: &Runner,
    journal: &mut Journal,
) -> Result<Vec<TestedMutant>, String> {
    let mut untested_databases = vec![Database::Sqlite, Database::Postgres, Database::Mysql];
    let count = mutants.len();
    let mut tested = Vec::with_capacity(count);
    for (index, mutant) in mutants.into_iter().enumerate() {
        let files = mutant.changed_files(runner.tree())?;
        if let Some(test) = journal.find_caught(&mutant, &files) {
            eprintln!("[{}/{count}] {mutant}: caught before", index + 1);
            let verdict = Verdict::Caught { test };
            tested.push(TestedMutant { mutant, verdict, duration: Duration::ZERO });
            continue;
        }
        // A test that also fails without a mutation proves nothing.
        if let Some(position) = untested_databases.iter().position(|it| *it == mutant.database) {
            eprintln!("testing without a mutation ({})", mutant.database.name());
            runner.check_unchanged(mutant.database)?;
            untested_databases.swap_remove(position);
        }
        let (verdict, duration) =
            runner.test(&mutant, &files, &journal.list_likely_tests(&mutant))?;
        eprintln!("[{}/{count}] {mutant}: {verdict} ({} s)", index + 1, duration.as_secs());
        journal.append(&mutant, &files, &verdict, duration)?;
        tested.push(TestedMutant { mutant, verdict, duration });
    }
    Ok(tested)
}

fn table(tested: &[TestedMutant]) -> String {
    let guard_width =
        tested.iter().map(|tested| tested.mutant.guard.len()).max().unwrap_or(0).max(5);
    let mut text = format!(
        "\n{:<4} {:<guard_width$} {:<8} {:<8} {:>7}  first failing test\n",
        "", "guard", "database", "result", "seconds"
    );
    for TestedMutant { mutant, verdict, duration } in tested {
        let (name, detail) = verdict.columns();
        let (guard, database) = (&mutant.guard, mutant.database.name());
        text.push_str(&format!(
            "{:<4} {guard:<guard_width$} {database:<8} {name:<8} {:>7}  {detail}\n",
            mutant.transition,
            duration.as_secs()
        ));
    }
    let count = |name| tested.iter().filter(|tested| tested.verdict.columns().0 == name).count();
    text.push_str(&format!(
        "\n{} mutants: {} caught, {} survived, {} broken\n",
        tested.len(),
        count("caught"),
        count("survived"),
        count("broken")
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_a_number_of_a_number() {
        assert_eq!(parse_shard("2/7"), Ok((2, 7)));
        for invalid in ["0/7", "8/7", "2", "a/b"] {
            assert!(parse_shard(invalid).is_err(), "{invalid}");
        }
    }
}
